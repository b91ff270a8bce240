#include "report/html.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>
#include <set>

#include "report/compare_output.h"
#include "report/html_tables.h"
#include "report/page_assets.h"
#include "report/report_data.h"
#include "report/svg.h"
#include "report/table.h"

namespace octet::report {
namespace {

struct Section {
  const char *id, *title;
  std::string body;
};

std::string list(const std::vector<std::string>& items) {
  if (items.empty()) return {};
  std::string out = "<ul class=\"notes\">\n";
  for (const auto& item : items) out += "<li>" + escape_markup(item) + "</li>\n";
  return out + "</ul>\n";
}

// How many groups got which verdict: "2 pass, 1 fail".
std::string tally(const Comparison& c) {
  std::string out;
  for (const Verdict v : {Verdict::pass, Verdict::fail, Verdict::inconclusive, Verdict::single_pair}) {
    const auto n = std::count_if(c.groups.begin(), c.groups.end(), [&](const Group& g) { return g.verdict == v; });
    if (n == 0) continue;
    const char* name = v == Verdict::single_pair ? (n == 1 ? "single pair without a verdict" : "single pairs without a verdict") : verdict_name(v);
    out += fmt::format("{}{} {}", out.empty() ? "" : ", ", n, name);
  }
  return out.empty() ? "Verdict" : "Verdict: " + out;
}

const char* verdict_mark(Verdict verdict) {
  switch (verdict) {
    case Verdict::pass: return "\xE2\x9C\x93";          // check mark
    case Verdict::fail: return "\xE2\x9C\x95";          // multiplication x
    case Verdict::inconclusive: return "?";
    case Verdict::single_pair: break;
  }
  return "1";
}

std::string verdicts(const Comparison& c) {
  std::string out = fmt::format("<p class=\"soft\">Question: is the final loss less than {:g} % worse than {}'s?</p>\n<ul class=\"verdicts\">\n",
                                c.options.margin_percent, escape_markup(c.baseline.label));
  for (const Group& g : c.groups) {
    out += fmt::format("<li class=\"{}\"><span class=\"chip\" aria-hidden=\"true\"><span class=\"mark\">{}</span>{}</span><span>{}</span></li>\n",
                       verdict_class(g.verdict), verdict_mark(g.verdict), verdict_name(g.verdict), escape_markup(verdict_sentence(g, c)));
  }
  if (c.twins) {
    out += "<li class=\"twins\"><span class=\"chip\" aria-hidden=\"true\"><span class=\"mark\">~</span>chance</span><span>" + escape_markup(twins_sentence(*c.twins)) +
           "</span></li>\n";
  }
  out += "</ul>\n";
  if (const std::string forest = forest_svg(c); !forest.empty()) {
    out += "<figure class=\"forest-figure\"><div class=\"wide\" tabindex=\"0\" role=\"region\" aria-label=\"Gaps and the margin\">" + forest +
           "</div><figcaption class=\"soft\">Dot: gap of the final loss; whisker: 95 % interval over seeds; arrow: beyond the picture." +
           (c.twins ? " Shaded: what the twins show chance alone to do." : "") + "</figcaption></figure>\n";
  }
  return out;
}

std::string legend(const Comparison& c) {
  const auto item = [](size_t series, const std::string& label) {
    return fmt::format("<li><span class=\"key\"><svg width=\"34\" height=\"12\" viewBox=\"0 0 34 12\" aria-hidden=\"true\"><g class=\"line {}\">"
                       "<path d=\"M0 6h34\"/></g></svg> {}</span></li>\n",
                       series_classes(series), escape_markup(label));
  };
  std::string out = "<ul class=\"legend-list\" id=\"legend\" aria-label=\"Lines\">\n" + item(0, c.baseline.label + " (baseline)");
  for (size_t i = 0; i < c.groups.size(); ++i) out += item(i + 1, c.groups[i].label);
  return out + "</ul>\n";
}

// Shown by the script alone: without it they would do nothing.
const char* const kControls = R"html(<div id="controls" class="controls" role="group" aria-label="Chart controls" hidden>
<fieldset><legend>x axis</legend><label><input type="radio" name="xunit" value="tokens" checked> tokens</label><label><input type="radio" name="xunit" value="steps"> steps</label></fieldset>
<fieldset><legend>Log scale</legend><label><input type="checkbox" id="logx"> x</label><label><input type="checkbox" id="logy"> y</label></fieldset>
<fieldset><legend>Lines</legend><label><input type="checkbox" id="raw" checked> raw values</label><label id="each-label"><input type="checkbox" id="each"> each run</label></fieldset>
<label class="slider">Smoothing <input type="range" id="smoothing" min="0" max="1" value="0"><output id="smoothing-value" for="smoothing"></output></label>
<button type="button" id="reset">Reset zoom</button>
</div>
<details class="hint" id="chart-help" hidden><summary>How to read and move the charts</summary>
<p class="soft" id="chart-hint">Drag across a chart to zoom, double-click to reset; the wheel zooms a chart that has the focus, or with Ctrl.
Keys in a chart: left and right move the line of values, with Shift the view; plus and minus zoom, up and down choose a line, 0 or Escape resets.</p>
<p class="soft">Lines are means over the steps around each point; faint areas and lines are the raw values, or their range over seeds; crosses are steps without a finite loss or
update; points are validations. Gaps are smoothed over the steps before, as the method below says.</p></details>
)html";

const char* const kHealthControls = R"html(<div id="health-controls" class="controls" role="group" aria-label="Heat map controls" hidden>
<label>Run <select id="health-run"></select></label><label>Measure <select id="health-metric"></select></label>
<label>Tensor <select id="health-role"></select></label><label>Image <select id="health-image"></select></label>
</div>
<div id="health-map" class="heat" hidden></div>
<details id="health-data" hidden><summary>Data table of this heat map</summary><div class="wide" id="health-data-table" tabindex="0" role="region" aria-label="Data of the heat map"></div></details>
)html";

std::string figure(const Chart& chart, const char* css = "") {
  if (!has_values(chart)) return {};
  return fmt::format(
      "<figure id=\"fig-{0}\" data-chart=\"{0}\" class=\"{1}\"><div class=\"static wide\" tabindex=\"0\" role=\"region\" aria-label=\"{2}\">{3}</div>\n"
      "<figcaption class=\"soft\" id=\"cap-{0}\">{4}</figcaption>\n<details><summary>Data table: {2}</summary>{5}</details></figure>\n",
      chart.id, css, escape_markup(chart.title), chart_svg(chart), escape_markup(chart.description + " " + chart_summary(chart)), chart_table(chart));
}

std::string curves(const Comparison& c) {
  std::string out = legend(c) + kControls;
  size_t pooled = 0, longest = 0;
  for (const RunDetail& run : c.runs) {
    pooled += run.series.pooled();
    longest = std::max(longest, run.series.steps);
  }
  if (pooled) {
    out += fmt::format("<p class=\"soft\">{} of {} runs have more steps (up to {}) than this page carries: neighbouring steps are pooled, and the faint "
                       "area keeps their smallest and largest values.</p>\n",
                       pooled, c.runs.size(), longest);
  }
  out += figure(loss_chart(c)) + figure(gap_chart(c)) + "<div class=\"two\">\n" + figure(grad_norm_chart(c)) + figure(throughput_chart(c)) + "</div>\n" +
         figure(learning_rate_chart(c), "small");
  return out;
}

std::string health(const Comparison& c) {
  const std::string table = health_table(c);
  if (table.empty()) return {};
  std::string out =
      "<p>How well the FP8 images hold their tensors. Underflow: share of elements that became zero; saturation: share clipped at the largest value; "
      "SQNR: signal to quantization noise; amax: largest magnitude. Darker (brighter in the dark scheme) is worse, or larger.</p>\n";
  for (const RunDetail& run : c.runs) {
    if (run.health.sites.size() < run.sites.size()) {
      out += fmt::format("<p class=\"soft\">{}: the {} worst of {} sites are shown.</p>\n", escape_markup(run.name), run.health.sites.size(), run.sites.size());
    }
  }
  return out + kHealthControls + table;
}

std::string base64(std::string_view bytes) {
  constexpr std::string_view digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t word = 0;
    for (size_t k = 0; k < 3; ++k) word = word << 8 | (i + k < bytes.size() ? static_cast<uint8_t>(bytes[i + k]) : 0u);
    for (size_t k = 0; k < 4; ++k) out += i + k <= bytes.size() ? digits[word >> (18 - 6 * k) & 63] : '=';
  }
  return out;
}

// Only this one script runs, whatever else a name might smuggle in.
std::string content_policy() {
  std::string digest;
  for (size_t i = 0; i + 1 < page::script_sha256.size(); i += 2) digest += static_cast<char>(std::stoi(std::string(page::script_sha256.substr(i, 2)), nullptr, 16));
  return "default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-" + base64(digest) + "'; base-uri 'none'; form-action 'none'";
}

std::string lead(const Comparison& c) {
  size_t most = 0;
  int64_t tokens = 0;
  for (const RunDetail& run : c.runs) {
    most = std::max(most, run.series.steps);
    if (!run.series.tokens.empty()) tokens = std::max(tokens, run.series.tokens.back());
  }
  std::string out = fmt::format("{} runs", c.runs.size());
  if (most) out += fmt::format(", up to {} steps and {} tokens", most, human_count(static_cast<double>(tokens)));
  return out;
}

}  // namespace

std::string to_html(const Comparison& c) {
  const std::string title = "Loss comparison with " + c.baseline.label;
  const std::string quantized = quantized_table(c), events = events_table(c), config = config_table(c);
  const std::string verdict_heading = tally(c);
  std::vector<Section> sections;
  sections.push_back({"verdict", "Verdict", verdicts(c) + summary_table(c)});
  sections.push_back({"notes", "Read this first", list(c.notes)});
  sections.push_back({"curves", "Curves", curves(c)});
  sections.push_back({"health", "FP8 health", health(c)});
  sections.push_back({"speed", "Throughput", speed_table(c)});
  sections.push_back({"pairs", "Pairs", pairs_table(c)});
  sections.push_back({"quantized", "Elements quantized", quantized});
  sections.push_back({"config", "Config differences", config});
  sections.push_back({"events", "Skipped steps and events", events.empty() ? "<p>None: every step was a plain one.</p>\n" : events});
  sections.push_back({"method", "Method", list(method_notes(c))});
  std::erase_if(sections, [](const Section& s) { return s.body.empty(); });

  std::string out =
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"" + content_policy() + "\">\n<meta name=\"color-scheme\" content=\"light dark\">\n<title>" +
      escape_markup(title) + "</title>\n<style>" + page_palette() + std::string(page::style) +
      "</style></head>\n<body>\n<a class=\"skip\" href=\"#main\">Skip to the verdict</a>\n<header><div><h1>" + escape_markup(title) +
      "</h1>\n<p class=\"soft\">" + lead(c) +
      "</p></div>\n<button type=\"button\" id=\"theme\" hidden>Theme: system</button></header>\n<nav aria-label=\"Sections\"><ul>";
  for (const Section& s : sections) out += fmt::format("<li><a href=\"#{}\">{}</a></li>", s.id, s.title);
  out += "</ul></nav>\n<main id=\"main\" tabindex=\"-1\">\n";
  for (const Section& s : sections) {
    const std::string heading = s.id == std::string_view("verdict") ? verdict_heading : s.title;
    out += fmt::format("<section id=\"{0}\" aria-labelledby=\"h-{0}\">\n<h2 id=\"h-{0}\">{1}</h2>\n{2}</section>\n", s.id, heading, s.body);
  }
  out += "</main>\n<footer class=\"soft\"><p>Made by octet compare " OCTET_VERSION ". This file is whole: it loads nothing.</p></footer>\n"
         "<div id=\"announce\" class=\"unseen\" aria-live=\"polite\"></div>\n<script type=\"application/json\" id=\"octet-data\">";
  return out + page_data(c) + "</script>\n<script>" + std::string(page::script) + "</script>\n</body></html>\n";
}

}  // namespace octet::report
