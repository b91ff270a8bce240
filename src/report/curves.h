// Curves over training tokens: smoothing, interpolation, differences of two runs.
#pragma once
#include <cstddef>
#include <functional>
#include <vector>

#include "report/run_metrics.h"

namespace octet::report {

// x ascending, as many y; NaN in y is a gap in the line.
struct Curve {
  std::vector<double> x, y;
  bool empty() const { return x.empty(); }
};

// Steps in the smoothing window of a run of `steps` steps: 40, or a tenth of the steps if that is fewer, at least 1.
size_t smoothing_window(size_t steps);

// Mean of the finite ones among each value and the window - 1 before it (fewer at the start); NaN where more than half of them are not finite.
std::vector<double> trailing_mean(const std::vector<double>& y, size_t window);

// The value at x by linear interpolation; NaN outside the curve.
double interpolate(const Curve& curve, double x);

// Smoothed training loss, gradient norm or tokens per second of a run, without its first `skip` steps.
Curve smoothed(const RunMetrics& run, double TrainPoint::*field, size_t skip = 0);

// Steps left out of speeds: a tenth of them, at least 1, at most 10. They pay for page faults, cold caches and autotuning.
size_t warm_up_steps(size_t steps);

// 100 * (run - baseline) / baseline of the two curves, at the points of `run` inside the baseline's range.
Curve relative_difference_percent(const Curve& run, const Curve& baseline);

// The same of the smoothed training losses of two runs. A step whose loss is not finite in one run, and is later again, is left out of both:
// else, while losses fall, the window without it would hold other steps than the baseline's.
Curve smoothed_gap_percent(const RunMetrics& run, const RunMetrics& baseline);

// Mean of curves at up to `points` evenly spaced points of the first curve, where all of them are defined. A point is NaN where one curve is.
Curve mean_curve(const std::vector<Curve>& curves, size_t points);

// The 95 % interval (Student's t) of the curves' mean at the points x. Empty for fewer than two curves; NaN where one of them is.
struct CurveBand {
  Curve lower, upper;
};
CurveBand mean_interval(const std::vector<Curve>& curves, const std::vector<double>& x);

}  // namespace octet::report
