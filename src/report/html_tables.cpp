#include "report/html_tables.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>
#include <numeric>
#include <set>

#include "report/compare_output.h"
#include "report/table.h"

namespace octet::report {
namespace {

constexpr size_t kMaxRows = 1000;

std::string last_loss(double loss) { return std::isfinite(loss) ? fmt::format("{:.4f}", loss) : std::string("not finite"); }
std::string seed_cell(const std::optional<uint64_t>& seed) { return seed ? std::to_string(*seed) : "-"; }
std::string short_number(double v, bool percent = false) {
  if (!std::isfinite(v)) return "-";
  if (percent) return fmt::format("{:+.3f}", v);
  return std::abs(v) >= 1e4 && std::abs(v) < 1e15 ? human_count(v) : fmt::format("{:.4g}", v);
}
std::string cut(const std::string& text, size_t size) { return text.size() > size ? text.substr(0, size - 3) + "..." : text; }

std::string role_of(const RunDetail& run, const Comparison& c) {
  if (run.twin) return "twin";
  return run.group == 0 ? "baseline" : c.groups[run.group - 1].label;
}

}  // namespace

const char* verdict_class(Verdict verdict) {
  switch (verdict) {
    case Verdict::pass: return "pass";
    case Verdict::fail: return "fail";
    case Verdict::inconclusive: return "inconclusive";
    case Verdict::single_pair: break;
  }
  return "single";
}

std::string html_table(const std::string& caption, const std::vector<std::string>& head, const std::vector<std::vector<Cell>>& rows) {
  const std::string more = rows.size() > kMaxRows ? fmt::format(" The first {} of {} rows.", kMaxRows, rows.size()) : std::string();
  std::string out = "<div class=\"wide\" tabindex=\"0\" role=\"region\" aria-label=\"" + escape_markup(cut(caption, 80)) +
                    "\"><table><caption class=\"soft left\">" + escape_markup(caption + more) + "</caption><thead><tr>";
  for (size_t i = 0; i < head.size(); ++i) {
    const char* const css = rows.empty() || rows.front()[i].css == nullptr ? "" : rows.front()[i].css;
    const bool left = i == 0 || std::string_view(css).starts_with("left");  // as the column below
    out += fmt::format("<th scope=\"col\"{}>{}</th>", left ? " class=\"left\"" : "", escape_markup(head[i]));
  }
  out += "</tr></thead><tbody>\n";
  for (size_t r = 0; r < std::min(rows.size(), kMaxRows); ++r) {
    out += "<tr>";
    for (size_t i = 0; i < rows[r].size(); ++i) {
      const Cell& cell = rows[r][i];
      const std::string css = cell.css ? fmt::format(" class=\"{}\"", cell.css) : std::string();
      out += i == 0 ? fmt::format("<th scope=\"row\"{}>{}</th>", css, escape_markup(cell.text)) : fmt::format("<td{}>{}</td>", css, escape_markup(cell.text));
    }
    out += "</tr>\n";
  }
  return out + "</tbody></table></div>\n";
}

std::string summary_table(const Comparison& c) {
  std::vector<std::vector<Cell>> rows;
  rows.push_back({{c.baseline.label + " (baseline)"},
                  {"-"},
                  {last_loss(c.baseline.loss)},
                  {"-"},
                  {"-"},
                  {std::to_string(c.baseline.names.size())},
                  {"1.000"},
                  {"-"},
                  {"1.000"},
                  {std::to_string(c.baseline.skipped_steps)},
                  {std::to_string(c.baseline.non_finite_steps)}});
  for (const Group& g : c.groups) {
    rows.push_back({{g.label},
                    {verdict_text(g), verdict_class(g.verdict)},
                    {last_loss(g.loss)},
                    {gap_text(g)},
                    {interval_text(g)},
                    {std::to_string(g.pairs.size())},
                    {ratio_text(g.grad_norm_ratio)},
                    {divergence_text(g.divergence)},
                    {ratio_text(g.throughput_ratio)},
                    {std::to_string(g.skipped_steps)},
                    {std::to_string(g.non_finite_steps)}});
  }
  return html_table("All groups against the baseline. Grad norm and speed are ratios to it.",
                    {"run", "verdict", "final loss", "gap", "95 % interval", "pairs", "grad norm", "diverges at", "speed", "skipped", "non-finite"},
                    rows);
}

std::string pairs_table(const Comparison& c) {
  std::vector<std::vector<Cell>> rows;
  const auto add = [&](const std::string& label, const Pair& p) {
    rows.push_back({{p.run},
                    {label, "left"},
                    {p.baseline, "left"},
                    {seed_cell(p.seed)},
                    {human_count(static_cast<double>(p.tokens))},
                    {last_loss(p.loss)},
                    {last_loss(p.baseline_loss)},
                    {p.failure.empty() ? gap_text(p) : p.failure}});
  };
  for (const Group& g : c.groups) {
    for (const Pair& p : g.pairs) add(g.label, p);
  }
  if (c.twins) {
    for (const Pair& p : c.twins->pairs) add("twin", p);
  }
  return html_table("Each run with its baseline.", {"run", "group", "baseline", "seed", "at tokens", "final loss", "baseline's", "gap"}, rows);
}

std::string speed_table(const Comparison& c) {
  std::vector<std::vector<Cell>> rows;
  const double base = c.baseline.tokens_per_s.value_or(0);
  for (const RunDetail& run : c.runs) {
    const double speed = run.tokens_per_s;
    const auto tokens = [](double v) { return std::isfinite(v) ? human_count(v) : std::string("-"); };
    rows.push_back({{run.name},
                    {role_of(run, c), "left"},
                    {seed_cell(run.seed)},
                    {std::to_string(run.series.steps)},
                    {run.series.tokens.empty() ? "-" : human_count(static_cast<double>(run.series.tokens.back()))},
                    {tokens(speed)},
                    {tokens(run.tokens_per_s_low) + " to " + tokens(run.tokens_per_s_high)},
                    {std::isfinite(speed) && base > 0 ? fmt::format("{:.3f}", speed / base) : "-"},
                    {std::isfinite(run.step_ms) ? fmt::format("{:.4g}", run.step_ms) : "-"}});
  }
  return html_table("Medians without the first steps; the range holds the middle 80 % of the steps.",
                    {"run", "group", "seed", "steps", "tokens", "tokens/s", "10 % to 90 %", "to baseline", "step (ms)"}, rows);
}

std::string quantized_table(const Comparison& c) {
  std::vector<std::vector<Cell>> rows;
  const auto add = [&](const std::string& label, const std::map<std::string, double>& counts) {
    for (const auto& [key, n] : counts) rows.push_back({{label}, {key, "left"}, {human_count(n)}});
  };
  add(c.baseline.label, c.baseline.quantized);
  for (const Group& g : c.groups) add(g.label, g.quantized);
  if (rows.empty()) return {};
  return html_table("By tensor role and format, summed over runs: a recipe that quietly ran in BF16 would show here.",
                    {"run", "role and format", "elements"}, rows);
}

std::string config_table(const Comparison& c) {
  std::map<std::string, std::string> keys;  // key -> the baseline's value
  for (const Group& g : c.groups) {
    for (const auto& [key, values] : g.config_differences) keys.try_emplace(key, values.first);
  }
  if (keys.empty()) return {};
  std::vector<std::string> head{"key", c.baseline.label + " (baseline)"};
  for (const Group& g : c.groups) head.push_back(g.label);
  std::vector<std::vector<Cell>> rows;
  for (const auto& [key, value] : keys) {
    std::vector<Cell> row{{key}, {cut(value, 80), "left value"}};
    for (const Group& g : c.groups) {
      const auto it = g.config_differences.find(key);
      if (it == g.config_differences.end())
        row.push_back({"same", "left soft"});
      else
        row.push_back({cut(it->second.second, 80), "left value differs"});
    }
    rows.push_back(std::move(row));
  }
  return html_table("Only keys that differ from the baseline's resolved config; seed and directory aside. One run a group.", head, rows);
}

std::string events_table(const Comparison& c) {
  std::vector<std::vector<Cell>> rows;
  const auto listed = [&](const RunDetail& run, const std::vector<int64_t>& steps, const char* what, const char* detail) {
    std::set<int64_t> told;
    for (const RunEvent& event : run.events) told.insert(event.step);
    for (const int64_t step : steps) {
      if (!told.contains(step)) rows.push_back({{run.name}, {std::to_string(step)}, {what, "left"}, {detail, "left text"}});
    }
  };
  for (const RunDetail& run : c.runs) {
    for (const RunEvent& event : run.events) {
      const bool skipped = event.step >= 0 && std::find(run.skipped.begin(), run.skipped.end(), event.step) != run.skipped.end();
      rows.push_back({{run.name},
                      {event.step < 0 ? "-" : std::to_string(event.step)},
                      {event.name + (skipped ? " (step skipped)" : ""), "left"},
                      {event.detail, "left text"}});
    }
    listed(run, run.skipped, "step skipped", "the optimizer update was left out");
    std::vector<int64_t> not_finite;
    std::set_difference(run.non_finite.begin(), run.non_finite.end(), run.skipped.begin(), run.skipped.end(), std::back_inserter(not_finite));
    listed(run, not_finite, "non-finite values", "loss, gradient norm or learning rate is not a finite number");
    if (run.further_events) rows.push_back({{run.name}, {"-"}, {fmt::format("{} further events", run.further_events), "left"}, {"", "left"}});
  }
  if (rows.empty()) return {};
  return html_table("What happened beside plain steps, checkpoints and validations.", {"run", "step", "event", "detail"}, rows);
}

std::string health_table(const Comparison& c) {
  constexpr size_t per_run = 12;
  std::vector<std::vector<Cell>> rows;
  for (const RunDetail& run : c.runs) {
    std::vector<size_t> order(run.sites.size());
    std::iota(order.begin(), order.end(), size_t{0});
    const auto badness = [&](size_t site) {
      const HealthExtremes& x = run.extremes[site];
      return std::array<double, 4>{x.nonfinite, std::fmax(0, x.saturation), std::fmax(0, x.underflow), -std::fmin(1e9, x.sqnr_db)};
    };
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return badness(a) > badness(b); });
    order.resize(std::min(order.size(), per_run));
    const auto percent = [](double v) { return std::isfinite(v) ? fmt::format("{:.3g} %", 100 * v) : std::string("-"); };
    for (const size_t site : order) {
      const HealthExtremes& x = run.extremes[site];
      rows.push_back({{run.name},
                      {run.sites[site].name, "left"},
                      {run.sites[site].format, "left"},
                      {percent(x.underflow)},
                      {percent(x.saturation)},
                      {std::isfinite(x.sqnr_db) ? fmt::format("{:.1f}", x.sqnr_db) : "-"},
                      {short_number(x.amax)},
                      {fmt::format("{:.0f}", x.nonfinite)}});
    }
  }
  if (rows.empty()) return {};
  return html_table(fmt::format("The {} worst sites of each run: largest underflow and saturation, smallest SQNR, largest amax over the run.", per_run),
                    {"run", "site", "format", "underflow", "saturation", "SQNR (dB)", "amax", "non-finite"}, rows);
}

std::string chart_summary(const Chart& chart) {
  std::string out;
  size_t told = 0, left = 0;
  for (const ChartLine& line : chart.lines) {
    if (line.points) continue;
    const auto it = std::find_if(line.curve.y.rbegin(), line.curve.y.rend(), [](double v) { return std::isfinite(v); });
    if (it == line.curve.y.rend()) continue;
    if (told == 8) {
      ++left;
      continue;
    }
    ++told;
    out += fmt::format("{}{} {}{}", out.empty() ? "Last values: " : ", ", line.label, short_number(*it, chart.percent), chart.percent ? " %" : "");
  }
  if (left) out += fmt::format(", and {} more", left);
  return out.empty() ? out : out + ".";
}

std::string chart_table(const Chart& chart) {
  constexpr int kRows = 20;
  double low = INFINITY, high = -INFINITY;
  std::vector<const ChartLine*> lines;
  std::vector<std::string> head{"tokens"};
  for (const ChartLine& line : chart.lines) {
    if (line.points || line.curve.empty()) continue;
    low = std::min(low, line.curve.x.front());
    high = std::max(high, line.curve.x.back());
    lines.push_back(&line);
    head.push_back(line.label);
  }
  std::vector<std::vector<Cell>> rows;
  for (int i = 0; i <= kRows && low <= high; ++i) {
    // On points of the longest line, so that its values are not interpolated.
    const auto longest = std::max_element(lines.begin(), lines.end(), [](auto* a, auto* b) { return a->curve.x.back() < b->curve.x.back(); });
    const auto& grid = (*longest)->curve.x;
    const auto at = std::lower_bound(grid.begin(), grid.end(), low + (high - low) * i / kRows);
    const double x = at == grid.end() ? grid.back() : *at;
    std::vector<Cell> row{{fmt::format("{:.0f}", x)}};
    if (!rows.empty() && rows.back().front().text == row.front().text) continue;
    for (const ChartLine* line : lines) {
      std::string text = short_number(interpolate(line->curve, x), chart.percent);
      for (const ChartBand& area : chart.intervals) {
        const double lower = interpolate(area.band.lower, x), upper = interpolate(area.band.upper, x);
        if (area.series == line->series && std::isfinite(lower)) text += fmt::format(" [{:+.3f}, {:+.3f}]", lower, upper);
      }
      row.push_back({text});
    }
    rows.push_back(std::move(row));
  }
  return html_table(chart.title + ": " + chart.y_label + ", smoothed, over training tokens.", head, rows);
}

}  // namespace octet::report
