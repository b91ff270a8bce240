#include "report/html.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>

#include "report/compare_output.h"
#include "report/svg.h"
#include "report/table.h"

namespace octet::report {
namespace {

const char* const kStyle = R"css(
:root{color-scheme:light dark;--page:#fff;--card:#f6f8fa;--text:#1f2328;--soft:#57606a;--rule:#d0d7de;--pass:#116329;--fail:#a40e26;--open:#7a4b00}
@media (prefers-color-scheme:dark){:root{--page:#14181d;--card:#1c2128;--text:#e6e9ed;--soft:#9ea7b3;--rule:#373e47;
--pass:#57d364;--fail:#ff9492;--open:#eac54f}}
body{margin:0 auto;max-width:70rem;padding:1.5rem;background:var(--page);color:var(--text);font:16px/1.5 system-ui,sans-serif}
h1{font-size:1.5rem;margin:0 0 .25rem}h2{font-size:1.15rem;margin:2rem 0 .5rem}p{margin:.4rem 0}.soft{color:var(--soft);font-size:.9rem}
.verdicts{list-style:none;padding:0;margin:1rem 0}
.verdicts li{background:var(--card);border-left:5px solid var(--soft);border-radius:4px;padding:.55rem .8rem;margin:.4rem 0;overflow-wrap:anywhere}
.verdicts .pass{border-color:var(--pass)}.verdicts .fail{border-color:var(--fail)}.verdicts .inconclusive{border-color:var(--open)}
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:.88rem;font-variant-numeric:tabular-nums}
th,td{padding:.3rem .55rem;text-align:right;border-bottom:1px solid var(--rule);white-space:nowrap}th[scope=row],.left{text-align:left}
thead th{color:var(--soft);font-weight:600}
td.pass,td.fail,td.inconclusive{font-weight:600}td.pass{color:var(--pass)}td.fail{color:var(--fail)}td.inconclusive{color:var(--open)}
.legend-list{display:flex;flex-wrap:wrap;gap:.4rem .6rem;list-style:none;padding:.5rem 0;margin:0;position:sticky;top:0;background:var(--page)}
.legend-list button,.legend-list span.key{font:inherit;font-size:.88rem;display:inline-flex;align-items:center;
gap:.45rem;color:var(--text);background:var(--card);border:1px solid var(--rule);border-radius:4px;padding:.15rem .55rem}
.legend-list button{cursor:pointer}.legend-list button[aria-pressed=false]{opacity:.5;text-decoration:line-through}
figure{margin:1rem 0}figure svg{width:100%;height:auto}code{overflow-wrap:anywhere}
)css";

// Buttons exist only where the script runs; numbers are the only thing it reads from the page.
const char* const kScript = R"js(
document.querySelectorAll('.legend-list li').forEach(function (item) {
  var button = document.createElement('button'), key = item.querySelector('.key');
  button.type = 'button';
  button.title = 'Show or hide this line';
  button.setAttribute('aria-pressed', 'true');
  while (key.firstChild) button.appendChild(key.firstChild);
  key.replaceWith(button);
  button.addEventListener('click', function () {
    var shown = button.getAttribute('aria-pressed') !== 'true';
    button.setAttribute('aria-pressed', String(shown));
    document.querySelectorAll('figure g[data-series="' + Number(item.dataset.key) + '"]').forEach(function (line) {
      line.classList.toggle('hidden', !shown);
    });
  });
});
)js";

std::string e(std::string_view text) { return escape_markup(text); }

const char* verdict_class(Verdict verdict) {
  switch (verdict) {
    case Verdict::pass: return "pass";
    case Verdict::fail: return "fail";
    case Verdict::inconclusive: return "inconclusive";
    case Verdict::single_pair: break;
  }
  return "single";
}

struct Cell {
  std::string text;
  const char* css = nullptr;
};

std::string table(const std::string& caption, const std::vector<std::string>& head, const std::vector<std::vector<Cell>>& rows) {
  std::string out = "<div class=\"wide\" tabindex=\"0\"><table><caption class=\"soft left\">" + e(caption) + "</caption><thead><tr>";
  for (size_t i = 0; i < head.size(); ++i) out += fmt::format("<th scope=\"col\"{}>{}</th>", i == 0 ? " class=\"left\"" : "", e(head[i]));
  out += "</tr></thead><tbody>\n";
  for (const auto& row : rows) {
    out += "<tr>";
    for (size_t i = 0; i < row.size(); ++i) {
      if (i == 0)
        out += "<th scope=\"row\">" + e(row[i].text) + "</th>";
      else
        out += fmt::format("<td{}>{}</td>", row[i].css ? fmt::format(" class=\"{}\"", row[i].css) : std::string(), e(row[i].text));
    }
    out += "</tr>\n";
  }
  return out + "</tbody></table></div>\n";
}

std::string loss_text(double loss) { return std::isfinite(loss) ? fmt::format("{:.4f}", loss) : std::string("not finite"); }

std::string main_table(const Comparison& c) {
  std::vector<std::vector<Cell>> rows;
  rows.push_back({{c.baseline.label + " (baseline)"},
                  {"-"},
                  {loss_text(c.baseline.loss)},
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
                    {loss_text(g.loss)},
                    {gap_text(g)},
                    {interval_text(g)},
                    {std::to_string(g.pairs.size())},
                    {ratio_text(g.grad_norm_ratio)},
                    {divergence_text(g.divergence)},
                    {ratio_text(g.throughput_ratio)},
                    {std::to_string(g.skipped_steps)},
                    {std::to_string(g.non_finite_steps)}});
  }
  return table("All groups against the baseline. Grad norm and speed are ratios to it.",
               {"run", "verdict", "final loss", "gap", "95 % interval", "pairs", "grad norm", "diverges at", "speed", "skipped", "non-finite"}, rows);
}

std::string pairs_table(const Comparison& c) {
  std::vector<std::vector<Cell>> rows;
  const auto add = [&](const std::string& label, const Pair& p) {
    rows.push_back({{p.run},
                    {label, "left"},
                    {p.baseline, "left"},
                    {p.seed ? std::to_string(*p.seed) : "-"},
                    {human_count(static_cast<double>(p.tokens))},
                    {loss_text(p.loss)},
                    {loss_text(p.baseline_loss)},
                    {p.failure.empty() ? gap_text(p) : p.failure}});
  };
  for (const Group& g : c.groups) {
    for (const Pair& p : g.pairs) add(g.label, p);
  }
  if (c.twins) {
    for (const Pair& p : c.twins->pairs) add("twin", p);
  }
  return table("Each run with its baseline.", {"run", "group", "baseline", "seed", "at tokens", "final loss", "baseline's", "gap"}, rows);
}

std::string quantized_table(const Comparison& c) {
  std::vector<std::vector<Cell>> rows;
  const auto add = [&](const std::string& label, const std::map<std::string, double>& counts) {
    for (const auto& [key, n] : counts) rows.push_back({{label}, {key, "left"}, {human_count(n)}});
  };
  add(c.baseline.label, c.baseline.quantized);
  for (const Group& g : c.groups) add(g.label, g.quantized);
  if (rows.empty()) return {};
  return "<h2>Elements quantized</h2>\n" + table("By tensor role and format, summed over runs: a recipe that quietly ran in BF16 would show here.",
                                                 {"run", "role and format", "elements"}, rows);
}

std::string differences_table(const Comparison& c) {
  std::vector<std::vector<Cell>> rows;
  const auto cut = [](const std::string& text) { return text.size() > 80 ? text.substr(0, 77) + "..." : text; };
  for (const Group& g : c.groups) {
    for (const auto& [key, values] : g.config_differences)
      rows.push_back({{g.label}, {key, "left"}, {cut(values.first), "left"}, {cut(values.second), "left"}});
  }
  if (rows.empty()) return {};
  return "<h2>Config differences</h2>\n" +
         table("What else differs from the baseline's resolved config, seed and directory aside.", {"run", "key", "baseline", "this run"}, rows);
}

std::string legend(const Comparison& c) {
  const auto item = [](size_t series, const std::string& label) {
    return fmt::format(
        "<li data-key=\"{}\"><span class=\"key\"><svg width=\"34\" height=\"10\" aria-hidden=\"true\"><g class=\"line {}\"><path d=\"M0 "
        "5h34\"/></g></svg> {}</span></li>\n",
        series, series_classes(series), e(label));
  };
  std::string out = "<ul class=\"legend-list\" aria-label=\"Legend\">\n" + item(0, c.baseline.label + " (baseline)");
  for (size_t i = 0; i < c.groups.size(); ++i) out += item(i + 1, c.groups[i].label);
  return out + "</ul>\n";
}

std::string figure(const Chart& chart) {
  const bool drawn = std::any_of(chart.lines.begin(), chart.lines.end(), [](const ChartLine& line) {
    return std::any_of(line.curve.y.begin(), line.curve.y.end(), [](double v) { return std::isfinite(v); });
  });
  if (!drawn) return {};
  return "<figure>" + chart_svg(chart) + "<figcaption class=\"soft\">" + e(chart.description) + "</figcaption></figure>\n";
}

std::string list(const char* heading, const std::vector<std::string>& items) {
  if (items.empty()) return {};
  std::string out = fmt::format("<h2>{}</h2>\n<ul>\n", heading);
  for (const auto& item : items) out += "<li>" + e(item) + "</li>\n";
  return out + "</ul>\n";
}

}  // namespace

std::string to_html(const Comparison& c) {
  const std::string title = "Loss comparison with " + c.baseline.label;
  std::string out =
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\n"
      "<title>" +
      e(title) + "</title>\n<style>" + kStyle + chart_style() + "</style></head>\n<body>\n<main>\n<h1>" + e(title) + "</h1>\n";
  out += fmt::format("<p class=\"soft\">Question: is the final loss less than {:g} % worse than {}'s?</p>\n", c.options.margin_percent,
                     e(c.baseline.label));
  out += "<ul class=\"verdicts\">\n";
  for (const Group& g : c.groups) out += fmt::format("<li class=\"{}\">{}</li>\n", verdict_class(g.verdict), e(verdict_sentence(g, c)));
  if (c.twins) out += "<li>" + e(twins_sentence(*c.twins)) + "</li>\n";
  out += "</ul>\n" + main_table(c);
  out += list("Read this first", c.notes);
  out += "<h2>Curves</h2>\n" + legend(c);
  for (const Chart& chart : {loss_chart(c), gap_chart(c), grad_norm_chart(c), throughput_chart(c)}) out += figure(chart);
  out += "<h2>Pairs</h2>\n" + pairs_table(c) + quantized_table(c) + differences_table(c) + list("Method", method_notes(c));
  return out + "</main>\n<script>" + kScript + "</script>\n</body></html>\n";
}

}  // namespace octet::report
