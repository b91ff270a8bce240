#include "report/run_detail.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "report/stats.h"

namespace octet::report {
namespace {

constexpr size_t kPointsOfAll = 60'000, kMinPoints = 400, kMaxPoints = 2'000;
constexpr size_t kHealthColumns = 96, kHealthSites = 600, kListedSteps = 1'000;

double finite_quantile(std::vector<double> values, double q) {
  std::erase_if(values, [](double v) { return !std::isfinite(v); });
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(std::lround(q * static_cast<double>(values.size() - 1)));
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

RunDetail detail(const RunMetrics& run, size_t group, bool twin, size_t points) {
  RunDetail out;
  out.name = run.name;
  out.recipe = run.recipe;
  out.seed = run.seed;
  out.group = group;
  out.twin = twin;
  out.window = smoothing_window(run.train.size());
  out.series = pool(run, points);
  out.valid = run.valid;
  std::vector<double> speeds, times;
  for (size_t i = 0; i < run.train.size(); ++i) {
    const TrainPoint& p = run.train[i];
    if (p.skipped && out.skipped.size() < kListedSteps) out.skipped.push_back(p.step);
    if (p.non_finite && out.non_finite.size() < kListedSteps) out.non_finite.push_back(p.step);
    if (i < warm_up_steps(run.train.size())) continue;
    speeds.push_back(p.tokens_per_s);
    times.push_back(p.step_ms);
  }
  out.tokens_per_s = stats::median(speeds);
  out.tokens_per_s_low = finite_quantile(speeds, 0.1);
  out.tokens_per_s_high = finite_quantile(speeds, 0.9);
  out.step_ms = stats::median(times);
  out.events = run.events;
  out.further_events = run.further_events;
  if (!run.health.empty()) {
    out.sites = run.health.sites();
    for (size_t site = 0; site < out.sites.size(); ++site) out.extremes.push_back(extremes(run.health, site));
    out.health = pool(run.health, kHealthColumns, kHealthSites);
  }
  return out;
}

}  // namespace

std::vector<RunDetail> run_details(const std::vector<std::vector<const RunMetrics*>>& members, const std::vector<RunMetrics>& twins) {
  size_t count = twins.size();
  for (const auto& runs : members) count += runs.size();
  const size_t points = std::clamp(kPointsOfAll / std::max<size_t>(count, 1), kMinPoints, kMaxPoints);
  std::vector<RunDetail> out;
  for (size_t group = 0; group < members.size(); ++group) {
    for (const RunMetrics* run : members[group]) out.push_back(detail(*run, group, false, points));
  }
  for (const RunMetrics& twin : twins) out.push_back(detail(twin, 0, true, points));
  return out;
}

}  // namespace octet::report
