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

// Tokens between two rows.
double row_tokens(const RunMetrics& run) {
  std::vector<double> spaces;
  for (size_t i = 1; i < run.train.size(); ++i) spaces.push_back(static_cast<double>(run.train[i].tokens - run.train[i - 1].tokens));
  return spaces.empty() ? static_cast<double>(run.tokens_per_step.value_or(0)) : stats::median(spaces);
}

void add_reason(std::string& text, const std::string& reason) {
  if (!reason.empty()) text += (text.empty() ? "" : "; ") + reason;
}

}  // namespace

int64_t last_tokens(const RunMetrics& run) {
  if (!run.train.empty()) return run.train.back().tokens;
  return run.valid.empty() ? 0 : run.valid.back().tokens;
}

std::string bad_end(const RunMetrics& run) {
  int64_t bad = 0;
  bool skipped = false;
  for (auto it = run.train.rbegin(); it != run.train.rend() && (it->skipped || it->non_finite || !std::isfinite(it->loss)); ++it) {
    ++bad;
    skipped = skipped || it->skipped;
  }
  if (bad == 0) return run.non_finite_after_end ? "the step after the last one recorded had non-finite values" : "";
  const std::string steps = bad == 1 ? "last step" : fmt::format("last {} steps", bad);
  if (!skipped) return steps + " had non-finite values";
  return fmt::format("{} {} skipped: non-finite values", steps, bad == 1 ? "was" : "were");
}

std::string short_end(const RunMetrics& run, const RunMetrics& baseline) {
  const int64_t have = last_tokens(run), full = last_tokens(baseline);
  const double step = std::fmax(row_tokens(run), row_tokens(baseline));
  return static_cast<double>(full) - static_cast<double>(have) > step ? fmt::format("ended at {} of {} tokens", have, full) : "";
}

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
  if (measure != Measure::validation && !baseline.train.empty() && pair.tokens < baseline.train.front().tokens) {
    throw Error(ExitCode::data, fmt::format("has no training loss within the tokens of {}", run.source.string()), baseline.source.string(), "compare runs that were logged over the same tokens");
  }
  if (!(pair.baseline_loss > 0) || !std::isfinite(pair.baseline_loss)) {
    throw Error(ExitCode::data, fmt::format("the baseline's final {} is not a positive number", measure_name(measure)), baseline.source.string(),
                "compare with a baseline that trained to its end on the same tokens");
  }
  if (diverged(run)) pair.loss = kNan;
  const double gap = 100 * (pair.loss - pair.baseline_loss) / pair.baseline_loss;
  if (!std::isfinite(gap)) pair.failure = "final loss is not a finite number";
  add_reason(pair.failure, bad_end(run));
  add_reason(pair.failure, short_end(run, baseline));
  pair.gap_percent = pair.failure.empty() ? gap : kInfinity;
  const Curve curve = smoothed_gap_percent(run, baseline);
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

std::string Group::failure() const {
  std::string text;
  for (const Pair& pair : pairs) {
    if (!pair.failure.empty()) add_reason(text, pairs.size() > 1 ? pair.run + ": " + pair.failure : pair.failure);
  }
  return text;
}

bool Group::diverged() const {
  return std::any_of(pairs.begin(), pairs.end(), [](const Pair& p) { return !std::isfinite(p.loss); });
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
