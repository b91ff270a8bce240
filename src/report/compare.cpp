#include "report/compare.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>
#include <limits>
#include <set>

#include "core/error.h"
#include "report/run_detail.h"
#include "report/stats.h"

namespace octet::report {
namespace {

using Runs = std::vector<const RunMetrics*>;
constexpr size_t kCurvePoints = 400;

struct Candidates {
  std::string label;
  Runs runs;
};

// Runs of one group differ in the seed only: what decides the loss curve beside it.
std::string signature(const RunMetrics& run) {
  std::string text;
  for (const char* section : {"model", "data", "batch", "optim", "sched", "precision"}) {
    const auto it = run.config.is_object() ? run.config.find(section) : run.config.end();
    if (it == run.config.end()) continue;
    nlohmann::json value = *it;
    if (value.is_object()) value.erase("seed");
    text += value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace) + "\n";
  }
  return text;
}

bool same_seed(const RunMetrics& a, const RunMetrics& b) { return a.seed && b.seed && *a.seed == *b.seed; }

// Groups by recipe; a recipe run with several configs, or twice with one seed, is split and labelled with run names too.
std::vector<Candidates> group_by_recipe(const Runs& runs) {
  struct Part {
    std::string recipe, signature;
    Runs runs;
  };
  std::vector<Part> parts;
  for (const RunMetrics* run : runs) {
    const std::string s = signature(*run);
    const auto it = std::find_if(parts.begin(), parts.end(), [&](const Part& p) { return p.recipe == run->recipe && p.signature == s; });
    if (it == parts.end())
      parts.push_back({run->recipe, s, {run}});
    else
      it->runs.push_back(run);
  }
  std::vector<Candidates> groups;
  std::set<std::string> labels;
  const auto add = [&](const std::string& wanted, Runs members) {
    std::string label = wanted;
    for (int n = 2; !labels.insert(label).second; ++n) label = fmt::format("{} #{}", wanted, n);
    groups.push_back({label, std::move(members)});
  };
  for (const Part& part : parts) {
    const bool alone = std::count_if(parts.begin(), parts.end(), [&](const Part& p) { return p.recipe == part.recipe; }) == 1;
    std::set<std::optional<uint64_t>> seeds;
    const bool repeated = !std::all_of(part.runs.begin(), part.runs.end(), [&](const RunMetrics* r) { return seeds.insert(r->seed).second; });
    const auto named = [&](const RunMetrics& r) { return r.name == part.recipe ? r.name : fmt::format("{} [{}]", part.recipe, r.name); };
    if (repeated) {
      for (const RunMetrics* run : part.runs) add(named(*run), {run});
    } else {
      add(alone ? part.recipe : named(*part.runs.front()), part.runs);
    }
  }
  return groups;
}

// The baseline of a run: the one with its seed; where seeds are unknown, the only baseline there is.
const RunMetrics* baseline_of(const RunMetrics& run, const Runs& baselines) {
  for (const RunMetrics* b : baselines) {
    if (same_seed(run, *b)) return b;
  }
  const bool only = baselines.size() == 1 && !(run.seed && baselines.front()->seed);
  return only ? baselines.front() : nullptr;
}

std::string seed_text(const RunMetrics& run) { return run.seed ? fmt::format("seed {}", *run.seed) : std::string("no known seed"); }

void check_baselines(const Runs& baselines) {
  for (size_t i = 0; i < baselines.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (!same_seed(*baselines[i], *baselines[j]) && baselines[i]->seed) continue;
      throw Error(
          ExitCode::data,
          fmt::format("{} and {} are both baselines with {}", baselines[j]->source.string(), baselines[i]->source.string(), seed_text(*baselines[i])),
          "compare", "choose one with --baseline, give perturbed ones with --twin");
    }
  }
}

Measure choose_measure(const std::vector<std::pair<const RunMetrics*, const RunMetrics*>>& pairs) {
  const bool all = std::all_of(pairs.begin(), pairs.end(), [](const auto& p) { return last_common_validation(*p.first, *p.second).has_value(); });
  return all ? Measure::validation : Measure::training;
}

GroupCurves group_curves(const Runs& runs) {
  GroupCurves out;
  const auto mean_of = [&](double TrainPoint::*field, bool skip_warm_up = false) {
    std::vector<Curve> curves;
    for (const RunMetrics* run : runs) curves.push_back(smoothed(*run, field, skip_warm_up ? warm_up_steps(run->train.size()) : 0));
    return mean_curve(curves, kCurvePoints);
  };
  out.loss = mean_of(&TrainPoint::loss);
  out.grad_norm = mean_of(&TrainPoint::grad_norm);
  out.lr = mean_of(&TrainPoint::lr);
  out.tokens_per_s = mean_of(&TrainPoint::tokens_per_s, true);
  std::vector<Curve> valid;
  for (const RunMetrics* run : runs) {
    Curve curve;
    for (const auto& p : run->valid) {
      curve.x.push_back(static_cast<double>(p.tokens));
      curve.y.push_back(p.loss);
    }
    valid.push_back(std::move(curve));
  }
  out.valid = mean_curve(valid, kCurvePoints);
  return out;
}

std::map<std::string, double> sum_quantized(const Runs& runs) {
  std::map<std::string, double> sum;
  for (const RunMetrics* run : runs) {
    for (const auto& [key, n] : run->quantized) sum[key] += n;
  }
  return sum;
}

int64_t sum_of(const Runs& runs, int64_t (RunMetrics::*count)() const) {
  int64_t sum = 0;
  for (const RunMetrics* run : runs) sum += (run->*count)();
  return sum;
}

std::map<std::string, std::pair<std::string, std::string>> differences(const RunMetrics& run, const RunMetrics& baseline) {
  std::map<std::string, std::pair<std::string, std::string>> out;
  if (run.config.is_null() || baseline.config.is_null()) return out;
  for (const auto& [key, value] : flatten_config(baseline.config)) out[key] = {value, "absent"};
  for (const auto& [key, value] : flatten_config(run.config)) {
    const auto [it, fresh] = out.try_emplace(key, "absent", value);
    if (!fresh) it->second.second = value;
  }
  std::erase_if(out, [](const auto& item) { return item.second.first == item.second.second || item.first == "run.seed" || item.first == "run.dir"; });
  return out;
}

// Differences that move the loss by themselves make the gap more than the recipe's.
void note_confounders(const Group& group, std::vector<std::string>& notes) {
  std::string keys;
  for (const auto& [key, values] : group.config_differences) {
    constexpr std::array<std::string_view, 6> prefixes{"precision.", "run.", "ckpt.", "log.", "guard.", "recompute."};
    if (std::any_of(prefixes.begin(), prefixes.end(), [k = std::string_view(key)](std::string_view p) { return k.starts_with(p); })) continue;
    keys += (keys.empty() ? "" : ", ") + key;
  }
  if (!keys.empty()) notes.push_back(fmt::format("{}: differs from its baseline in {}, so the gap is not the recipe's alone", group.label, keys));
}

void note_run(const RunMetrics& run, const RunMetrics& baseline, int64_t tokens, std::vector<std::string>& notes) {
  const int64_t have = last_tokens(run), full = last_tokens(baseline);
  if (have != full) {
    notes.push_back(fmt::format("{}: ends at {} tokens, its baseline {} at {}; compared at {} tokens, which both have", run.name, have,
                                baseline.name, full, tokens));
  }
  if (!run.data.empty() && !baseline.data.empty() && run.data != baseline.data) {
    notes.push_back(fmt::format("{}: trained on other token files ({}) than its baseline {} ({}): the two are no pair, whatever their paths say", run.name, run.data, baseline.name, baseline.data));
  }
  double elements = 0;
  for (const auto& item : run.quantized) elements += item.second;
  const bool high_precision = run.recipe == "bf16" || run.recipe == "fp32";
  const bool counted = !run.quantized.empty();
  if (counted && elements == 0 && !high_precision) notes.push_back(fmt::format("{}: recipe {} quantized no element at all", run.name, run.recipe));
}

void judge_group(Group& group, const CompareOptions& options) {
  std::vector<double> gaps, losses, grad_norms, speeds;
  for (const Pair& pair : group.pairs) {
    gaps.push_back(pair.gap_percent);
    losses.push_back(pair.loss);
    if (pair.grad_norm_ratio) grad_norms.push_back(*pair.grad_norm_ratio);
    if (pair.throughput_ratio) speeds.push_back(*pair.throughput_ratio);
    if (pair.divergence && (!group.divergence || pair.divergence->tokens < group.divergence->tokens)) group.divergence = pair.divergence;
  }
  const Judgement j = judge(gaps, options.margin_percent);
  group.gap_percent = j.gap_percent;
  group.lower_percent = j.lower_percent;
  group.upper_percent = j.upper_percent;
  group.stddev_percent = j.stddev_percent;
  group.verdict = j.verdict;
  group.more_seeds = j.more_seeds;
  group.loss = stats::mean(losses);
  if (!grad_norms.empty()) group.grad_norm_ratio = stats::median(grad_norms);
  if (!speeds.empty()) group.throughput_ratio = stats::median(speeds);
  if (options.max_gap_percent) group.within_max_gap = group.bound_percent() < *options.max_gap_percent;
}

Group make_group(const Candidates& candidates, const Runs& baselines, const CompareOptions& options, std::vector<std::string>& notes, Runs& paired,
                 std::vector<Runs>& members) {
  Group group;
  group.label = candidates.label;
  std::vector<std::pair<const RunMetrics*, const RunMetrics*>> pairs;
  Runs runs;
  for (const RunMetrics* run : candidates.runs) {
    if (const RunMetrics* baseline = baseline_of(*run, baselines)) {
      pairs.emplace_back(run, baseline);
      runs.push_back(run);
      paired.push_back(baseline);
    } else {
      notes.push_back(fmt::format("{}: left out, no baseline has its seed ({})", run->name, seed_text(*run)));
    }
  }
  if (pairs.empty()) {
    throw Error(ExitCode::data, fmt::format("no baseline to pair it with ({}; pairs share a seed)", seed_text(*candidates.runs.front())),
                candidates.runs.front()->source.string(), "add the baseline run of that seed, or name one with --baseline");
  }
  group.measure = choose_measure(pairs);
  std::vector<Curve> gaps;
  for (const auto& [run, baseline] : pairs) {
    group.pairs.push_back(compare_pair(*run, *baseline, group.measure, options.divergence_percent));
    gaps.push_back(smoothed_gap_percent(*run, *baseline));
    note_run(*run, *baseline, group.pairs.back().tokens, notes);
  }
  group.config_differences = differences(*pairs.front().first, *pairs.front().second);
  note_confounders(group, notes);
  judge_group(group, options);
  group.skipped_steps = sum_of(runs, &RunMetrics::skipped_steps);
  group.non_finite_steps = sum_of(runs, &RunMetrics::non_finite_steps);
  group.quantized = sum_quantized(runs);
  group.curves = group_curves(runs);
  group.curves.gap_percent = mean_curve(gaps, kCurvePoints);
  group.curves.gap_interval = mean_interval(gaps, group.curves.gap_percent.x);
  members.push_back(std::move(runs));
  return group;
}

Twins make_twins(const std::vector<RunMetrics>& runs, const Runs& baselines, const CompareOptions& options, std::vector<std::string>& notes) {
  Twins twins;
  std::vector<std::pair<const RunMetrics*, const RunMetrics*>> pairs;
  for (const RunMetrics& run : runs) {
    const RunMetrics* baseline = baseline_of(run, baselines);
    if (!baseline) {
      throw Error(ExitCode::data, fmt::format("the twin has no baseline with its seed ({})", seed_text(run)), run.source.string(),
                  "a twin is a baseline with slightly perturbed weights: give the baseline of its seed");
    }
    pairs.emplace_back(&run, baseline);
  }
  twins.measure = choose_measure(pairs);
  std::vector<double> gaps;
  for (const auto& [run, baseline] : pairs) {
    twins.pairs.push_back(compare_pair(*run, *baseline, twins.measure, options.divergence_percent));
    gaps.push_back(twins.pairs.back().gap_percent);
    if (const auto& failure = twins.pairs.back().failure; !failure.empty()) notes.push_back(fmt::format("{} (twin): {}", run->name, failure));
    twins.max_gap_percent = std::max(twins.max_gap_percent, std::abs(gaps.back()));
    twins.max_abs_curve_percent = std::fmax(twins.max_abs_curve_percent, twins.pairs.back().max_abs_gap_percent);
  }
  twins.rms_gap_percent = stats::root_mean_square(gaps);
  return twins;
}

// Splits the runs into baselines and candidates.
std::pair<Runs, Runs> split_runs(const CompareInput& input) {
  Runs baselines, candidates;
  for (const auto& run : input.baselines) baselines.push_back(&run);
  for (const auto& run : input.runs) candidates.push_back(&run);
  if (!baselines.empty() || candidates.empty()) return {baselines, candidates};
  const bool mixed = std::any_of(candidates.begin(), candidates.end(), [&](const auto* r) { return r->recipe != candidates.front()->recipe; });
  const bool has_bf16 = std::any_of(candidates.begin(), candidates.end(), [](const auto* r) { return r->recipe == "bf16"; });
  const std::string recipe = has_bf16 ? "bf16" : candidates.front()->recipe;
  const RunMetrics* first = candidates.front();
  const bool twins_only = !input.twins.empty() && !mixed;
  const auto is_baseline = [&](const RunMetrics* r) { return mixed || twins_only ? r->recipe == recipe : r == first; };
  std::copy_if(candidates.begin(), candidates.end(), std::back_inserter(baselines), is_baseline);
  std::erase_if(candidates, is_baseline);
  return {baselines, candidates};
}

}  // namespace

bool Comparison::within_max_gap() const {
  return !options.max_gap_percent || std::all_of(groups.begin(), groups.end(), [](const Group& g) { return g.within_max_gap.value_or(false); });
}

Comparison compare(CompareInput input, const CompareOptions& options) {
  const auto [baselines, candidates] = split_runs(input);
  if (baselines.empty() || (candidates.empty() && input.twins.empty())) {
    throw Error(ExitCode::usage, "nothing to compare: there is a baseline but no other run", "compare", "give at least two runs");
  }
  check_baselines(baselines);
  Comparison out;
  out.options = options;
  for (const auto* list : {&input.baselines, &input.runs, &input.twins}) {
    for (const auto& run : *list) out.notes.insert(out.notes.end(), run.notes.begin(), run.notes.end());
  }
  Runs paired;
  std::vector<Runs> members{baselines};  // by group as RunDetail counts them
  for (const Candidates& group : group_by_recipe(candidates)) {
    out.groups.push_back(make_group(group, baselines, options, out.notes, paired, members));
  }
  if (!input.twins.empty()) out.twins = make_twins(input.twins, baselines, options, out.notes);

  out.baseline.label = group_by_recipe(baselines).front().label;
  std::vector<double> losses, speeds;
  std::set<std::string> seen;
  const auto add_loss = [&](const Pair& pair) {
    if (seen.insert(pair.baseline).second) losses.push_back(pair.baseline_loss);
  };
  for (const auto& group : out.groups) std::for_each(group.pairs.begin(), group.pairs.end(), add_loss);
  if (out.twins && out.groups.empty()) std::for_each(out.twins->pairs.begin(), out.twins->pairs.end(), add_loss);
  for (const RunMetrics* run : baselines) {
    out.baseline.names.push_back(run->name);
    speeds.push_back(median_tokens_per_s(*run));
    if (const std::string end = bad_end(*run); !end.empty()) out.notes.push_back(fmt::format("{} (a baseline): {}", run->name, end));
    if (!out.groups.empty() && std::find(paired.begin(), paired.end(), run) == paired.end()) {
      out.notes.push_back(fmt::format("{}: a baseline ({}) that no run is paired with", run->name, seed_text(*run)));
    }
  }
  out.baseline.loss = stats::mean(losses);
  if (const double speed = stats::median(speeds); std::isfinite(speed)) out.baseline.tokens_per_s = speed;
  out.baseline.skipped_steps = sum_of(baselines, &RunMetrics::skipped_steps);
  out.baseline.non_finite_steps = sum_of(baselines, &RunMetrics::non_finite_steps);
  out.baseline.quantized = sum_quantized(baselines);
  out.baseline.curves = group_curves(baselines);
  out.runs = run_details(members, input.twins);
  return out;
}

}  // namespace octet::report
