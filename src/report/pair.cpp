// One run against one baseline, and the verdict over pairs.
#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <limits>

#include "core/error.h"
#include "report/compare.h"
#include "report/stats.h"

namespace octet::report {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

int64_t last_tokens(const RunMetrics& run) {
  return std::max(run.train.empty() ? 0 : run.train.back().tokens, run.valid.empty() ? 0 : run.valid.back().tokens);
}

// A run whose last training loss is not finite, with no finite validation at or after it.
bool diverged(const RunMetrics& run) {
  if (run.train.empty() || std::isfinite(run.train.back().loss)) return false;
  return std::none_of(run.valid.begin(), run.valid.end(),
                      [&](const ValidPoint& p) { return p.tokens >= run.train.back().tokens && std::isfinite(p.loss); });
}

// Mean of the smoothing window that ends at `tokens`; NaN when most of it is not finite or there is none.
double final_training_loss(const RunMetrics& run, int64_t tokens) {
  std::vector<double> losses;
  for (const auto& point : run.train) {
    if (point.tokens <= tokens) losses.push_back(point.loss);
  }
  if (losses.empty()) return kNan;
  const size_t window = smoothing_window(losses.size());
  return trailing_mean({losses.end() - static_cast<std::ptrdiff_t>(window), losses.end()}, window).back();
}

double validation_at(const RunMetrics& run, int64_t tokens) {
  const auto it = std::find_if(run.valid.begin(), run.valid.end(), [&](const ValidPoint& p) { return p.tokens == tokens; });
  return it == run.valid.end() ? kNan : it->loss;
}

std::optional<double> finite(double v) { return std::isfinite(v) ? std::optional(v) : std::nullopt; }

std::optional<double> grad_norm_ratio(const RunMetrics& run, const RunMetrics& baseline) {
  std::vector<double> ratios;
  for (size_t i = 0, j = 0; i < run.train.size() && j < baseline.train.size();) {
    const TrainPoint &a = run.train[i], &b = baseline.train[j];
    if (a.tokens == b.tokens && b.grad_norm > 0) ratios.push_back(a.grad_norm / b.grad_norm);
    const bool advance_run = a.tokens <= b.tokens, advance_baseline = b.tokens <= a.tokens;
    i += advance_run;
    j += advance_baseline;
  }
  return finite(stats::median(ratios));
}

std::optional<Divergence> first_divergence(const Curve& gap, const RunMetrics& run, double threshold) {
  size_t first = gap.x.size();
  while (first > 0 && !(std::abs(gap.y[first - 1]) <= threshold)) --first;  // NaN counts as beyond
  if (first == gap.x.size()) return std::nullopt;
  const auto tokens = static_cast<int64_t>(gap.x[first]);
  const auto it = std::find_if(run.train.begin(), run.train.end(), [&](const TrainPoint& p) { return p.tokens == tokens; });
  return Divergence{it->step, tokens};
}

}  // namespace

double median_tokens_per_s(const RunMetrics& run) {
  std::vector<double> speeds;
  for (size_t i = warm_up_steps(run.train.size()); i < run.train.size(); ++i) speeds.push_back(run.train[i].tokens_per_s);
  return stats::median(speeds);
}

std::optional<int64_t> last_common_validation(const RunMetrics& a, const RunMetrics& b) {
  auto i = a.valid.rbegin();
  auto j = b.valid.rbegin();
  while (i != a.valid.rend() && j != b.valid.rend()) {
    if (i->tokens == j->tokens) return i->tokens;
    if (i->tokens > j->tokens)
      ++i;
    else
      ++j;
  }
  return std::nullopt;
}

Pair compare_pair(const RunMetrics& run, const RunMetrics& baseline, Measure measure, double divergence_percent) {
  Pair pair;
  pair.run = run.name;
  pair.baseline = baseline.name;
  pair.seed = run.seed ? run.seed : baseline.seed;
  if (measure == Measure::validation) {
    pair.tokens = last_common_validation(run, baseline).value_or(0);
    pair.loss = validation_at(run, pair.tokens);
    pair.baseline_loss = validation_at(baseline, pair.tokens);
  } else {
    pair.tokens = std::min(last_tokens(run), last_tokens(baseline));
    pair.loss = final_training_loss(run, pair.tokens);
    pair.baseline_loss = final_training_loss(baseline, pair.tokens);
  }
  if (!(pair.baseline_loss > 0) || !std::isfinite(pair.baseline_loss)) {
    throw Error(ExitCode::data, fmt::format("the baseline's final {} is not a positive number", measure_name(measure)), baseline.source.string(),
                "compare with a baseline that trained to its end on the same tokens");
  }
  if (diverged(run)) pair.loss = kNan;
  const double gap = 100 * (pair.loss - pair.baseline_loss) / pair.baseline_loss;
  pair.gap_percent = std::isfinite(gap) ? gap : kInfinity;
  const Curve curve = relative_difference_percent(smoothed(run, &TrainPoint::loss), smoothed(baseline, &TrainPoint::loss));
  pair.max_abs_gap_percent = kNan;
  for (double y : curve.y) {
    if (std::isfinite(y)) pair.max_abs_gap_percent = std::fmax(pair.max_abs_gap_percent, std::abs(y));
  }
  pair.divergence = first_divergence(curve, run, divergence_percent);
  pair.grad_norm_ratio = grad_norm_ratio(run, baseline);
  pair.throughput_ratio = finite(median_tokens_per_s(run) / median_tokens_per_s(baseline));
  return pair;
}

Judgement judge(const std::vector<double>& gaps, double margin) {
  Judgement j;
  if (std::any_of(gaps.begin(), gaps.end(), [](double g) { return !std::isfinite(g); })) {
    j.gap_percent = kInfinity;
    j.verdict = Verdict::fail;
    return j;
  }
  j.gap_percent = stats::mean(gaps);
  const auto interval = stats::t_interval(gaps);
  if (!interval) return j;
  j.lower_percent = interval->lower;
  j.upper_percent = interval->upper;
  j.stddev_percent = stats::sample_stddev(gaps);
  if (interval->upper < margin) {
    j.verdict = Verdict::pass;
  } else if (interval->lower > margin) {
    j.verdict = Verdict::fail;
  } else {
    j.verdict = Verdict::inconclusive;
    const auto have = static_cast<int64_t>(gaps.size());
    if (const auto need = stats::pairs_to_resolve(*j.stddev_percent, std::abs(margin - j.gap_percent), have)) j.more_seeds = *need - have;
  }
  return j;
}

const char* verdict_name(Verdict verdict) {
  switch (verdict) {
    case Verdict::pass: return "pass";
    case Verdict::fail: return "fail";
    case Verdict::inconclusive: return "inconclusive";
    case Verdict::single_pair: return "one pair";
  }
  return "";
}

const char* measure_name(Measure measure) { return measure == Measure::validation ? "validation loss" : "smoothed training loss"; }

}  // namespace octet::report
