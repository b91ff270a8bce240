#include "report/report_data.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <set>

#include "report/table.h"

namespace octet::report {
namespace {

using nlohmann::json;

// Six significant digits are beyond what a pixel shows, and half of the page's size.
json rounded(double v) {
  if (!std::isfinite(v)) return nullptr;
  return std::strtod(fmt::format("{:.6g}", v).c_str(), nullptr);
}

template <class T>
json rounded(const std::vector<T>& values) {
  json out = json::array();
  for (const T v : values) out.push_back(rounded(static_cast<double>(v)));
  return out;
}

// Steps and tokens are exact.
json counts(const std::vector<int64_t>& values) { return json(values); }

json pooled(const PooledValues& values, bool pooled) {
  if (!pooled) return {{"mean", rounded(values.mean)}};
  return {{"mean", rounded(values.mean)}, {"low", rounded(values.low)}, {"high", rounded(values.high)}};
}

json run_json(const RunDetail& run) {
  const bool is_pooled = run.series.pooled();
  json valid{{"step", json::array()}, {"tokens", json::array()}, {"loss", json::array()}};
  for (const ValidPoint& p : run.valid) {
    valid["step"].push_back(p.step);
    valid["tokens"].push_back(p.tokens);
    valid["loss"].push_back(rounded(p.loss));
  }
  std::set<int64_t> bad(run.non_finite.begin(), run.non_finite.end());
  bad.insert(run.skipped.begin(), run.skipped.end());
  return {{"name", terminal_text(run.name)},
          {"group", run.group},
          {"twin", run.twin},
          {"window", run.window},
          {"steps", run.series.steps},
          {"step", counts(run.series.step)},
          {"tokens", counts(run.series.tokens)},
          {"lines", is_pooled ? counts(run.series.lines) : json(nullptr)},
          {"loss", pooled(run.series.loss, is_pooled)},
          {"grad_norm", pooled(run.series.grad_norm, is_pooled)},
          {"lr", rounded(run.series.lr.mean)},
          {"tokens_per_s", rounded(run.series.tokens_per_s.mean)},
          {"valid", valid},
          {"bad", bad}};
}

json health_json(const RunDetail& run, size_t index) {
  json sites = json::array();
  for (const size_t site : run.health.sites) {
    const HealthSite& s = run.sites[site];
    sites.push_back({{"name", terminal_text(s.name)}, {"role", terminal_text(s.role)}, {"image", terminal_text(s.image)}, {"format", terminal_text(s.format)}});
  }
  json out{{"run", index},
           {"total_sites", run.sites.size()},
           {"first", counts(run.health.first_step)},
           {"last", counts(run.health.last_step)},
           {"sites", sites}};
  for (const HealthMetric metric : kHealthMetrics) {
    json rows = json::array();
    for (const auto& row : run.health.values[static_cast<size_t>(metric)]) rows.push_back(rounded(row));
    out[health_key(metric)] = rows;
  }
  return out;
}

json group_json(const std::string& label, const GroupCurves& curves, bool baseline) {
  json gap = nullptr;
  if (!baseline && !curves.gap_percent.empty()) {
    json tokens = json::array();
    for (const double x : curves.gap_percent.x) tokens.push_back(static_cast<int64_t>(x));
    gap = {{"tokens", tokens}, {"mean", rounded(curves.gap_percent.y)}};
    if (!curves.gap_interval.upper.empty()) {
      gap["lower"] = rounded(curves.gap_interval.lower.y);
      gap["upper"] = rounded(curves.gap_interval.upper.y);
    }
  }
  return {{"label", terminal_text(label)}, {"gap", gap}};
}

}  // namespace

std::string page_data(const Comparison& c) {
  json out{{"margin", rounded(c.options.margin_percent)},
           {"twin_band", c.twins ? rounded(c.twins->max_gap_percent) : json(nullptr)},
           {"groups", json::array({group_json(c.baseline.label, c.baseline.curves, true)})},
           {"runs", json::array()},
           {"health", json::array()}};
  for (const Group& g : c.groups) out["groups"].push_back(group_json(g.label, g.curves, false));
  for (size_t i = 0; i < c.runs.size(); ++i) {
    out["runs"].push_back(run_json(c.runs[i]));
    if (!c.runs[i].health.sites.empty()) out["health"].push_back(health_json(c.runs[i], i));
  }
  // Non-ASCII characters are \u escapes already; the three that could end or open an element become such too.
  std::string text;
  for (const char ch : out.dump(-1, ' ', true, json::error_handler_t::replace)) {
    if (ch == '<' || ch == '>' || ch == '&')
      text += fmt::format("\\u{:04x}", static_cast<unsigned>(ch));
    else
      text += ch;
  }
  return text;
}

}  // namespace octet::report
