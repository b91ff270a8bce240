// The verdict at a glance: each group's gap and interval against the margin.
#include <algorithm>
#include <cmath>
#include <fmt/format.h>

#include "report/compare_output.h"
#include "report/svg.h"
#include "report/table.h"

namespace octet::report {
namespace {

constexpr double kForestWidth = 860, kLabels = 190, kValues = 120, kRow = 30, kForestTop = 30, kForestBottom = 42;

// Wide enough for the margin and for what lies within five margins of zero: a run that lost by far leaves the picture with an arrow.
double half_range(const Comparison& c) {
  const double margin = std::max(std::abs(c.options.margin_percent), 0.01);
  double reach = 1.6 * margin;
  for (const Group& g : c.groups) {
    for (const double v : {g.gap_percent, g.lower_percent.value_or(0), g.upper_percent.value_or(0)}) {
      if (std::isfinite(v) && std::abs(v) <= 5 * margin) reach = std::max(reach, 1.15 * std::abs(v));
    }
  }
  if (c.twins && c.twins->max_gap_percent <= 5 * margin) reach = std::max(reach, 1.15 * c.twins->max_gap_percent);
  return reach;
}

std::string short_label(const std::string& label) { return label.size() > 26 ? label.substr(0, 23) + "..." : label; }

}  // namespace

std::string forest_svg(const Comparison& c) {
  if (c.groups.empty()) return {};
  const double reach = half_range(c), left = kLabels, right = kForestWidth - kValues, bottom = kForestTop + kRow * static_cast<double>(c.groups.size());
  const double height = bottom + kForestBottom;
  const auto x = [&](double v) { return std::clamp(left + (v + reach) / (2 * reach) * (right - left), left, right); };
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" role=\"img\" "
      "aria-labelledby=\"forest-title forest-desc\"><title id=\"forest-title\">Gaps and the margin</title><desc id=\"forest-desc\">Gap of the final "
      "loss of each group with its 95 % interval; the numbers are in the table below. Left of the margin line is good.</desc>\n",
      kForestWidth, height);
  if (c.twins && std::isfinite(c.twins->max_gap_percent)) {
    const double t = std::abs(c.twins->max_gap_percent);
    out += fmt::format("<rect class=\"band\" x=\"{:.1f}\" y=\"{}\" width=\"{:.1f}\" height=\"{:.1f}\"/>\n", x(-t), kForestTop, x(t) - x(-t), bottom - kForestTop);
  }
  for (const double v : nice_ticks(-reach, reach, 6)) {
    out += fmt::format("<line class=\"grid\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\"/><text class=\"tick\" text-anchor=\"middle\" "
                       "x=\"{0:.1f}\" y=\"{3}\">{4}</text>\n",
                       x(v), kForestTop, bottom, bottom + 17, std::abs(v) < 1e-12 ? "0" : fmt::format("{:+.3g}", v));
  }
  out += fmt::format("<line class=\"axis\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\"/>\n", x(0), kForestTop, bottom);
  const double margin = c.options.margin_percent;
  out += fmt::format("<line class=\"guide\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\"/><text class=\"tick\" text-anchor=\"middle\" "
                     "x=\"{0:.1f}\" y=\"{3}\">margin {4:+.3g} %</text>\n",
                     x(margin), kForestTop - 6, bottom, kForestTop - 11, margin);
  out += fmt::format("<text class=\"label\" text-anchor=\"middle\" x=\"{:.1f}\" y=\"{}\">gap of the final loss to {} (%)</text>\n", (left + right) / 2,
                     height - 6, escape_markup(short_label(c.baseline.label)));
  for (size_t i = 0; i < c.groups.size(); ++i) {
    const Group& g = c.groups[i];
    const double y = kForestTop + kRow * (static_cast<double>(i) + 0.5);
    out += fmt::format("<g class=\"forest {}\"><text class=\"legend\" x=\"0\" y=\"{}\">{}</text>", series_classes(i + 1), y + 5,
                       escape_markup(short_label(g.label)));
    out += fmt::format("<text class=\"legend\" text-anchor=\"end\" x=\"{}\" y=\"{}\">{}</text>", kForestWidth, y + 5, escape_markup(gap_text(g)));
    const double low = g.lower_percent.value_or(g.gap_percent), high = g.upper_percent.value_or(g.gap_percent);
    if (!std::isfinite(g.gap_percent) || low > reach) {
      out += fmt::format("<path class=\"mark\" d=\"M{:.1f} {}m0 -6l10 6l-10 6z\"/>", right - 11, y);
    } else if (high < -reach) {
      out += fmt::format("<path class=\"mark\" d=\"M{:.1f} {}m0 -6l-10 6l10 6z\"/>", left + 11, y);
    } else {
      if (g.lower_percent) {
        out += fmt::format("<path class=\"whisker\" d=\"M{0:.1f} {2}H{1:.1f}M{0:.1f} {3}v10M{1:.1f} {3}v10\"/>", x(low), x(high), y, y - 5);
      }
      out += fmt::format("<circle class=\"mark\" cx=\"{:.1f}\" cy=\"{}\" r=\"5\"/>", x(g.gap_percent), y);
    }
    out += "</g>\n";
  }
  return out + "</svg>\n";
}

}  // namespace octet::report
