#include "report/compare_output.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>

#include "report/table.h"

namespace octet::report {
namespace {

using nlohmann::json;

json number(double v) { return std::isfinite(v) ? json(v) : json(nullptr); }
json number(const std::optional<double>& v) { return v ? number(*v) : json(nullptr); }

json to_json(const std::optional<Divergence>& d) { return d ? json{{"step", d->step}, {"tokens", d->tokens}} : json(nullptr); }

json to_json(const Pair& p) {
  return {{"run", p.run},
          {"baseline", p.baseline},
          {"seed", p.seed ? json(*p.seed) : json(nullptr)},
          {"tokens", p.tokens},
          {"loss", number(p.loss)},
          {"baseline_loss", number(p.baseline_loss)},
          {"gap_percent", number(p.gap_percent)},
          {"diverged", !std::isfinite(p.loss)},
          {"failure", p.failure.empty() ? json(nullptr) : json(p.failure)},
          {"max_abs_gap_percent", number(p.max_abs_gap_percent)},
          {"grad_norm_ratio", number(p.grad_norm_ratio)},
          {"throughput_ratio", number(p.throughput_ratio)},
          {"first_divergence", to_json(p.divergence)}};
}

json to_json(const std::vector<Pair>& pairs) {
  json out = json::array();
  for (const Pair& pair : pairs) out.push_back(to_json(pair));
  return out;
}

json to_json(const Group& g) {
  json differences = json::object();
  for (const auto& [key, values] : g.config_differences) differences[key] = {{"baseline", values.first}, {"run", values.second}};
  const std::string failure = g.failure();
  return {{"label", g.label},
          {"measure", measure_name(g.measure)},
          {"verdict", verdict_name(g.verdict)},
          {"gap_percent", number(g.gap_percent)},
          {"diverged", g.diverged()},
          {"failure", failure.empty() ? json(nullptr) : json(failure)},
          {"lower_percent", number(g.lower_percent)},
          {"upper_percent", number(g.upper_percent)},
          {"stddev_percent", number(g.stddev_percent)},
          {"more_seeds", g.more_seeds ? json(*g.more_seeds) : json(nullptr)},
          {"within_max_gap", g.within_max_gap ? json(*g.within_max_gap) : json(nullptr)},
          {"loss", number(g.loss)},
          {"grad_norm_ratio", number(g.grad_norm_ratio)},
          {"throughput_ratio", number(g.throughput_ratio)},
          {"first_divergence", to_json(g.divergence)},
          {"skipped_steps", g.skipped_steps},
          {"non_finite_steps", g.non_finite_steps},
          {"quantized", g.quantized},
          {"config_differences", differences},
          {"pairs", to_json(g.pairs)}};
}

std::string signed_percent(double v) { return std::isfinite(v) ? fmt::format("{:+.3f} %", v) : std::string("diverged"); }

std::string loss_word(double loss) { return std::isfinite(loss) ? fmt::format("{:.4f}", loss) : std::string("-"); }

std::string quantized_text(const Comparison& c) {
  Table table({{"elements quantized", Table::Align::left}, {"role and format", Table::Align::left}, {"elements"}});
  bool any = false;
  const auto add = [&](const std::string& label, const std::map<std::string, double>& counts) {
    for (const auto& [key, n] : counts) table.add_row({label, key, human_count(n)});
    any = any || !counts.empty();
  };
  add(c.baseline.label, c.baseline.quantized);
  for (const Group& group : c.groups) add(group.label, group.quantized);
  return any ? "\n" + table.text() : std::string();
}

std::string table_text(const Comparison& c) {
  Table table({{"run", Table::Align::left},
               {"pairs"},
               {"final loss"},
               {"gap"},
               {"95 % interval"},
               {"verdict", Table::Align::left},
               {"grad norm"},
               {"diverges at"},
               {"speed"},
               {"skipped"},
               {"non-finite"}});
  table.add_row({c.baseline.label + " (baseline)", std::to_string(c.baseline.names.size()), loss_word(c.baseline.loss), "-", "-", "-", "1.000", "-",
                 "1.000", std::to_string(c.baseline.skipped_steps), std::to_string(c.baseline.non_finite_steps)});
  for (const Group& g : c.groups) {
    table.add_row({g.label, std::to_string(g.pairs.size()), loss_word(g.loss), gap_text(g), interval_text(g), verdict_text(g),
                   ratio_text(g.grad_norm_ratio), divergence_text(g.divergence), ratio_text(g.throughput_ratio), std::to_string(g.skipped_steps),
                   std::to_string(g.non_finite_steps)});
  }
  if (c.twins) {
    for (const Pair& p : c.twins->pairs) {
      table.add_row({p.run + " (twin)", "1", loss_word(p.loss), gap_text(p), "-", "-", ratio_text(p.grad_norm_ratio),
                     divergence_text(p.divergence), ratio_text(p.throughput_ratio), "-", "-"});
    }
  }
  return table.text();
}

}  // namespace

std::string percent_text(std::optional<double> percent) { return percent ? signed_percent(*percent) : "-"; }

std::string gap_text(const Pair& p) { return std::isfinite(p.gap_percent) ? percent_text(p.gap_percent) : std::isfinite(p.loss) ? "-" : "diverged"; }

std::string gap_text(const Group& g) { return std::isfinite(g.gap_percent) ? percent_text(g.gap_percent) : g.diverged() ? "diverged" : "-"; }

std::string verdict_text(const Group& g) {
  const auto failed = [](const Pair& p) { return !p.failure.empty(); };
  const auto n = std::count_if(g.pairs.begin(), g.pairs.end(), failed);
  if (n == 0) return verdict_name(g.verdict);
  const std::string more = n == 1 ? std::string() : fmt::format(" (and {} more)", n - 1);
  return fmt::format("{}: {}{}", verdict_name(g.verdict), std::find_if(g.pairs.begin(), g.pairs.end(), failed)->failure, more);
}

std::string ratio_text(std::optional<double> ratio) { return ratio ? fmt::format("{:.3f}", *ratio) : "-"; }

std::string interval_text(const Group& g) {
  return g.lower_percent && g.upper_percent ? fmt::format("[{:+.3f}, {:+.3f}] %", *g.lower_percent, *g.upper_percent) : "-";
}

std::string divergence_text(const std::optional<Divergence>& d) { return d ? fmt::format("step {}", d->step) : "-"; }

std::string verdict_sentence(const Group& g, const Comparison& c) {
  const std::string& base = c.baseline.label;
  const double margin = c.options.margin_percent;
  std::string line = fmt::format("{}: {} -- ", g.label, verdict_name(g.verdict));
  const std::string max_gap =
      g.within_max_gap ? fmt::format("; --max-gap {:g}: {}", *c.options.max_gap_percent, *g.within_max_gap ? "yes" : "no") : std::string();
  if (const std::string failure = g.failure(); !failure.empty()) return line + failure + max_gap;
  line += fmt::format("final loss {} vs {}", signed_percent(g.gap_percent), base);
  if (g.lower_percent) line += fmt::format(" (95 % interval {:+.3f} to {:+.3f} %, {} seeds)", *g.lower_percent, *g.upper_percent, g.pairs.size());
  switch (g.verdict) {
    case Verdict::pass: line += fmt::format("; less than the allowed {:.3g} % worse", margin); break;
    case Verdict::fail: line += fmt::format("; more than the allowed {:.3g} % worse", margin); break;
    case Verdict::single_pair: line += "; one seed has no interval: an observation, not a verdict"; break;
    case Verdict::inconclusive:
      line += fmt::format("; the allowed {:.3g} % lies within the interval: ", margin);
      line += g.more_seeds ? fmt::format("run about {} more seed{}", *g.more_seeds, *g.more_seeds == 1 ? "" : "s")
                           : std::string("more seeds will not settle it");
      break;
  }
  if (g.measure == Measure::training) line += " [smoothed training loss: no common validation]";
  return line + max_gap;
}

std::string twins_sentence(const Twins& t) {
  const auto size = [](double v) { return std::isfinite(v) ? fmt::format("{:.3f} %", std::abs(v)) : std::string("without bound"); };
  return fmt::format(
      "{} twin{} (the baseline from slightly perturbed weights): {} differs by {} at most, {} root mean square, {} at most along the way. "
      "Gaps of this size need no cause.",
      t.pairs.size(), t.pairs.size() == 1 ? "" : "s", measure_name(t.measure), size(t.max_gap_percent), size(t.rms_gap_percent),
      size(t.max_abs_curve_percent));
}

std::vector<std::string> method_notes(const Comparison& c) {
  std::vector<std::string> notes;
  bool training = c.twins && c.twins->measure == Measure::training, validation = c.twins && !training;
  for (const Group& g : c.groups) (g.measure == Measure::training ? training : validation) = true;
  if (validation) notes.emplace_back("Final loss is the last validation loss on the fixed validation set at a token count both runs of a pair have.");
  if (training) {
    notes.emplace_back(
        "Where a run has no such validation, final loss is the mean training loss of the last 40 steps (a tenth of the steps if that is fewer). "
        "It is noisier than a fixed validation set.");
  }
  notes.push_back(
      fmt::format("A gap is the relative difference of the final losses; positive means worse than {}. Runs are paired by seed; the gap of several "
                  "pairs is their mean, with the 95 % interval of Student's t.",
                  c.baseline.label));
  notes.push_back(fmt::format(
      "Pass: the whole interval lies below the margin of {:g} %. Fail: the whole interval lies above it, or a run diverged, ended before its "
      "baseline or with non-finite or skipped steps. Else inconclusive: "
      "the number of further seeds is the one at which the interval would clear the margin if mean and spread stay as they are.",
      c.options.margin_percent));
  notes.push_back(fmt::format(
      "Curves are means over seeds, smoothed over the last 40 steps (or a tenth). A run diverges at the first step from which its smoothed "
      "training loss stays more than {:g} % away from the baseline's to the end. Gradient norm and speed are ratios to the baseline, "
      "medians over steps; speed leaves out the first steps.",
      c.options.divergence_percent));
  return notes;
}

std::string to_text(const Comparison& c) {
  std::string out = table_text(c) + "\n";
  for (const Group& group : c.groups) out += terminal_text(verdict_sentence(group, c)) + "\n";
  if (c.twins) out += twins_sentence(*c.twins) + "\n";
  out += quantized_text(c);
  for (const auto& note : c.notes) out += "note: " + terminal_text(note) + "\n";
  return out;
}

json to_json(const Comparison& c) {
  json out{{"schema", 1},
           {"margin_percent", c.options.margin_percent},
           {"max_gap_percent", number(c.options.max_gap_percent)},
           {"divergence_percent", c.options.divergence_percent},
           {"within_max_gap", c.within_max_gap()},
           {"notes", c.notes}};
  out["baseline"] = {{"label", c.baseline.label},
                     {"runs", c.baseline.names},
                     {"loss", number(c.baseline.loss)},
                     {"tokens_per_s", number(c.baseline.tokens_per_s)},
                     {"skipped_steps", c.baseline.skipped_steps},
                     {"non_finite_steps", c.baseline.non_finite_steps},
                     {"quantized", c.baseline.quantized}};
  out["groups"] = json::array();
  for (const Group& group : c.groups) out["groups"].push_back(to_json(group));
  out["twins"] = nullptr;
  if (c.twins) {
    out["twins"] = {{"measure", measure_name(c.twins->measure)},
                    {"rms_gap_percent", number(c.twins->rms_gap_percent)},
                    {"max_gap_percent", number(c.twins->max_gap_percent)},
                    {"max_abs_curve_percent", number(c.twins->max_abs_curve_percent)},
                    {"pairs", to_json(c.twins->pairs)}};
  }
  return out;
}

}  // namespace octet::report
