// A loss curve as CSV, and the curves made of it.
#include "fuzz.h"
#include "report/curves.h"
#include "report/run_metrics.h"

using namespace octet;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fuzz::Scratch scratch;
  scratch.write("curve.csv", fuzz::text_of(data, size));
  fuzz::accepts({ExitCode::data}, [&] {
    const report::RunMetrics run = report::read_run(scratch.path("curve.csv"));
    const report::Curve curve = report::smoothed(run, &report::TrainPoint::loss);
    fuzz::require(curve.x.size() == run.train.size() && curve.y.size() == curve.x.size(), "a curve has a point a step");
    report::mean_curve({curve, report::relative_difference_percent(curve, curve)}, 50);
  });
  return 0;
}
