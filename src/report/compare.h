// Compares training runs with their baselines: pairs by seed, aligns by tokens, and judges the difference of the final losses
// by non-inferiority. No input or output here; see compare_command.h.
//
// Final loss: the last validation record at a token count both runs have; when a run of the group has none, the mean of the
// smoothing window's training losses (curves.h) that ends at the last token count both runs reach.
// Gap of a pair: 100 * (loss - baseline loss) / baseline loss. Gap of a group: mean over its pairs, with the 95 % interval of
// Student's t. A run that did not end well (failure of a Pair) has no gap that could be believed: it counts as infinite.
// Source of the method: one-sided confidence-interval non-inferiority test with a fixed margin (ICH E9, section 3.3.2).
#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "report/curves.h"
#include "report/run_metrics.h"
#include "report/run_series.h"

namespace octet::report {

struct CompareOptions {
  double margin_percent = 0.25;
  std::optional<double> max_gap_percent;  // absent: no exit code from the gap
  double divergence_percent = 1.0;        // threshold of "first divergence"
};

struct CompareInput {
  std::vector<RunMetrics> runs;       // in the order of the command line
  std::vector<RunMetrics> baselines;  // empty: the runs with recipe bf16; if there are none or no others, those like the first run
  std::vector<RunMetrics> twins;      // perturbed baselines: what a difference without a cause looks like
};

enum class Measure { validation, training };
enum class Verdict { pass, fail, inconclusive, single_pair };  // single_pair: one pair has no interval, so only a gap

struct Divergence {
  int64_t step = 0, tokens = 0;
};

struct Pair {
  std::string run, baseline;  // names
  std::optional<uint64_t> seed;
  int64_t tokens = 0;                      // where the final losses were taken
  double loss = 0, baseline_loss = 0;      // loss is NaN when the run diverged
  double gap_percent = 0;                  // +infinity with a failure
  std::string failure;                     // why the run cannot pass, in words: it ended early, badly or diverged; empty: it can
  double max_abs_gap_percent = 0;          // over the run, of the smoothed training losses; NaN without a common range
  std::optional<double> grad_norm_ratio;   // median over common steps of run / baseline
  std::optional<double> throughput_ratio;  // of the medians of tokens/s without the first steps
  std::optional<Divergence> divergence;    // from here on the smoothed training losses differ by more than the threshold
};

struct GroupCurves {                    // means over the runs or pairs of the group, at most 400 points
  Curve loss, grad_norm, tokens_per_s;  // smoothed
  Curve lr;
  Curve gap_percent;                    // of the smoothed training losses
  CurveBand gap_interval;               // 95 %, over pairs; empty for a single pair
  Curve valid;                          // validation points
};

struct Group {
  std::string label;
  Measure measure = Measure::validation;
  std::vector<Pair> pairs;
  double gap_percent = 0;  // +infinity when a pair has a failure
  std::optional<double> lower_percent, upper_percent;
  std::optional<double> stddev_percent;  // over pairs
  Verdict verdict = Verdict::single_pair;
  std::optional<int64_t> more_seeds;                                              // for inconclusive; absent when it would take more than a million
  std::optional<bool> within_max_gap;                                             // present with max_gap_percent
  double loss = 0;                                                                // mean final loss of the runs
  std::optional<double> grad_norm_ratio, throughput_ratio;                        // medians over pairs
  std::optional<Divergence> divergence;                                           // the earliest
  int64_t skipped_steps = 0, non_finite_steps = 0;                                // summed over runs
  std::map<std::string, double> quantized;                                        // elements by role and format, summed over runs
  std::map<std::string, std::pair<std::string, std::string>> config_differences;  // key -> (baseline's, the group's), first pair
  GroupCurves curves;

  // The failures of its pairs, each with the run's name where there are several pairs; empty without any.
  std::string failure() const;
  bool diverged() const;  // a run's final loss is not finite
  // What --max-gap tests: the upper bound, or the gap where there is no interval.
  double bound_percent() const { return upper_percent.value_or(gap_percent); }
};

struct Twins {
  std::vector<Pair> pairs;
  Measure measure = Measure::validation;
  double rms_gap_percent = 0, max_gap_percent = 0;  // of |gap|, over twins
  double max_abs_curve_percent = 0;                 // largest max_abs_gap_percent
};

struct Baseline {
  std::string label;
  std::vector<std::string> names;
  double loss = 0;                     // mean final loss of the baselines that were paired
  std::optional<double> tokens_per_s;  // median over runs of their medians
  int64_t skipped_steps = 0, non_finite_steps = 0;
  std::map<std::string, double> quantized;
  GroupCurves curves;
};

// One run as the report shows it. What is beyond the bounds of a page is pooled (curves, statistics) or counted (events).
struct RunDetail {
  std::string name, recipe;
  std::optional<uint64_t> seed;
  size_t group = 0;  // 0: a baseline; i + 1: of groups[i]
  bool twin = false;
  size_t window = 1;  // steps in the smoothing window
  RunSeries series;
  std::vector<ValidPoint> valid;
  std::vector<int64_t> skipped, non_finite;  // steps, the first 1000 of each
  std::vector<RunEvent> events;              // of run_metrics.h
  int64_t further_events = 0;
  double tokens_per_s = 0, tokens_per_s_low = 0, tokens_per_s_high = 0, step_ms = 0;  // median, 10th and 90th percentile; NaN: unknown
  std::vector<HealthSite> sites;             // empty without statistics
  std::vector<HealthExtremes> extremes;      // by site
  PooledHealth health;
};

struct Comparison {
  CompareOptions options;
  Baseline baseline;
  std::vector<Group> groups;
  std::optional<Twins> twins;
  std::vector<RunDetail> runs;     // baselines, then each group's, then the twins
  std::vector<std::string> notes;  // what a reader should know before believing the numbers

  bool within_max_gap() const;  // true without max_gap_percent
};

// Throws Error(data) when nothing can be paired, when two baselines share a seed, or a baseline's loss is not a positive number;
// Error(usage) when there is nothing to compare with the baseline.
Comparison compare(CompareInput input, const CompareOptions& options);

// Verdict of gaps at a margin: pass when the upper bound is below it, fail when the lower bound is above it or a gap is infinite.
struct Judgement {
  double gap_percent = 0;
  std::optional<double> lower_percent, upper_percent, stddev_percent;
  Verdict verdict = Verdict::single_pair;
  std::optional<int64_t> more_seeds;
};
Judgement judge(const std::vector<double>& gaps_percent, double margin_percent);

// Pairs one run with one baseline. With Measure::validation both need validation records at a common token count.
Pair compare_pair(const RunMetrics& run, const RunMetrics& baseline, Measure measure, double divergence_percent);
// Why the end of a run is not to be trusted ("last step was skipped: non-finite values"); empty when it is.
std::string bad_end(const RunMetrics& run);
// Why a run is shorter than its baseline ("ended at N of M tokens"); empty when it is at most one step short. Where the
// metrics do not hold every step (a CSV), a step is what lies between their rows (the median).
std::string short_end(const RunMetrics& run, const RunMetrics& baseline);
// Where the training of a run ended: its last train record, without any its last validation.
int64_t last_tokens(const RunMetrics& run);
// The last token count at which both runs have a validation record.
std::optional<int64_t> last_common_validation(const RunMetrics& a, const RunMetrics& b);

// Median tokens/s without the warm-up steps (curves.h); NaN when unknown.
double median_tokens_per_s(const RunMetrics& run);

const char* verdict_name(Verdict verdict);  // "pass", "fail", "inconclusive", "one pair"
const char* measure_name(Measure measure);  // "validation loss", "smoothed training loss"

}  // namespace octet::report
