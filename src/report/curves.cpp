#include "report/curves.h"

#include <algorithm>
#include <cmath>

#include "report/stats.h"

namespace octet::report {

size_t smoothing_window(size_t steps) { return std::clamp<size_t>(steps / 10, 1, 40); }

std::vector<double> trailing_mean(const std::vector<double>& y, size_t window) {
  std::vector<double> out(y.size());
  for (size_t i = 0; i < y.size(); ++i) {
    const size_t begin = i + 1 > window ? i + 1 - window : 0;
    double sum = 0;
    size_t finite = 0;
    for (size_t k = begin; k <= i; ++k) {  // summed anew: a running sum would carry rounding and non-finite values along
      if (!std::isfinite(y[k])) continue;
      sum += y[k];
      ++finite;
    }
    out[i] = 2 * finite >= i + 1 - begin ? sum / static_cast<double>(finite) : kNan;
  }
  return out;
}

double interpolate(const Curve& c, double x) {
  const auto it = std::lower_bound(c.x.begin(), c.x.end(), x);
  if (it == c.x.end()) return kNan;
  const auto i = static_cast<size_t>(it - c.x.begin());
  if (*it == x) return c.y[i];
  if (i == 0) return kNan;
  const double share = (x - c.x[i - 1]) / (c.x[i] - c.x[i - 1]);
  return c.y[i - 1] + share * (c.y[i] - c.y[i - 1]);
}

size_t warm_up_steps(size_t steps) { return std::clamp<size_t>(steps / 10, 1, 10); }

Curve smoothed(const RunMetrics& run, double TrainPoint::*field, size_t skip) {
  Curve curve;
  for (size_t i = skip; i < run.train.size(); ++i) {
    curve.x.push_back(static_cast<double>(run.train[i].tokens));
    curve.y.push_back(run.train[i].*field);
  }
  curve.y = trailing_mean(curve.y, smoothing_window(curve.y.size()));
  return curve;
}

Curve relative_difference_percent(const Curve& run, const Curve& baseline) {
  Curve out;
  if (run.empty() || baseline.empty()) return out;
  for (size_t i = 0; i < run.x.size(); ++i) {
    if (run.x[i] < baseline.x.front() || run.x[i] > baseline.x.back()) continue;
    const double base = interpolate(baseline, run.x[i]);
    out.x.push_back(run.x[i]);
    out.y.push_back(100 * (run.y[i] - base) / base);
  }
  return out;
}

Curve smoothed_gap_percent(const RunMetrics& run, const RunMetrics& baseline) {
  Curve a, b;
  const auto fill = [](Curve& out, const RunMetrics& from) {
    for (const TrainPoint& p : from.train) {
      out.x.push_back(static_cast<double>(p.tokens));
      out.y.push_back(p.loss);
    }
  };
  fill(a, run);
  fill(b, baseline);
  const auto last_finite = [](const Curve& c) {
    const auto it = std::find_if(c.y.rbegin(), c.y.rend(), [](double v) { return std::isfinite(v); });
    return it == c.y.rend() ? -1.0 : c.x[static_cast<size_t>(c.y.rend() - it) - 1];
  };
  const double end = std::min(last_finite(a), last_finite(b));
  for (size_t i = 0, j = 0; i < a.x.size() && j < b.x.size() && a.x[i] < end;) {
    if (a.x[i] == b.x[j] && !(std::isfinite(a.y[i]) && std::isfinite(b.y[j]))) a.y[i] = b.y[j] = kNan;
    const bool advance_run = a.x[i] <= b.x[j], advance_baseline = b.x[j] <= a.x[i];
    i += advance_run;
    j += advance_baseline;
  }
  // Both windows are a tenth of the range that the runs share: a shorter run against a longer one must not be smoothed over fewer tokens, or the
  // slope of the loss would show as a gap.
  if (a.empty() || b.empty()) return {};
  const double shared = std::min(a.x.back(), b.x.back());
  for (Curve* c : {&a, &b}) {
    const auto count = static_cast<size_t>(std::upper_bound(c->x.begin(), c->x.end(), shared) - c->x.begin());
    c->y = trailing_mean(c->y, smoothing_window(std::max<size_t>(count, 1)));
  }
  return relative_difference_percent(a, b);
}

Curve mean_curve(const std::vector<Curve>& curves, size_t points) {
  Curve out;
  if (curves.empty() || points == 0) return out;
  double low = -std::numeric_limits<double>::infinity(), high = std::numeric_limits<double>::infinity();
  for (const auto& curve : curves) {
    if (curve.empty()) return out;
    low = std::max(low, curve.x.front());
    high = std::min(high, curve.x.back());
  }
  std::vector<double> grid;
  for (double x : curves.front().x) {
    if (x >= low && x <= high) grid.push_back(x);
  }
  const size_t n = std::min(points, grid.size());
  for (size_t i = 0; i < n; ++i) {
    const double x = grid[n == 1 ? grid.size() - 1 : i * (grid.size() - 1) / (n - 1)];
    double sum = 0;
    for (const auto& curve : curves) sum += interpolate(curve, x);
    out.x.push_back(x);
    out.y.push_back(std::isfinite(sum) ? sum / static_cast<double>(curves.size()) : kNan);
  }
  return out;
}

CurveBand mean_interval(const std::vector<Curve>& curves, const std::vector<double>& x) {
  CurveBand out;
  if (curves.size() < 2) return out;
  for (const double at : x) {
    std::vector<double> values;
    for (const auto& curve : curves) values.push_back(interpolate(curve, at));
    const bool finite = std::all_of(values.begin(), values.end(), [](double v) { return std::isfinite(v); });
    const auto interval = finite ? stats::t_interval(values) : std::nullopt;
    out.lower.x.push_back(at);
    out.upper.x.push_back(at);
    out.lower.y.push_back(interval ? interval->lower : kNan);
    out.upper.y.push_back(interval ? interval->upper : kNan);
  }
  return out;
}

}  // namespace octet::report
