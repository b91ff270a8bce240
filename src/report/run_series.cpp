#include "report/run_series.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace octet::report {
namespace {

void append(PooledValues& out, const std::vector<TrainPoint>& train, size_t begin, size_t end, double TrainPoint::*field) {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  double sum = 0, low = nan, high = nan;
  size_t finite = 0;
  for (size_t i = begin; i < end; ++i) {
    const double v = train[i].*field;
    if (!std::isfinite(v)) continue;
    sum += v;
    ++finite;
    low = std::fmin(low, v);
    high = std::fmax(high, v);
  }
  out.mean.push_back(finite ? sum / static_cast<double>(finite) : nan);
  out.low.push_back(low);
  out.high.push_back(high);
}

}  // namespace

RunSeries pool(const RunMetrics& run, size_t points) {
  RunSeries out;
  out.steps = run.train.size();
  const size_t n = std::min(out.steps, points);
  for (size_t i = 0; i < n; ++i) {
    const size_t begin = i * out.steps / n, end = (i + 1) * out.steps / n;
    out.step.push_back(run.train[end - 1].step);
    out.tokens.push_back(run.train[end - 1].tokens);
    out.lines.push_back(static_cast<int64_t>(end - begin));
    append(out.loss, run.train, begin, end, &TrainPoint::loss);
    append(out.grad_norm, run.train, begin, end, &TrainPoint::grad_norm);
    append(out.lr, run.train, begin, end, &TrainPoint::lr);
    append(out.tokens_per_s, run.train, begin, end, &TrainPoint::tokens_per_s);
  }
  return out;
}

}  // namespace octet::report
