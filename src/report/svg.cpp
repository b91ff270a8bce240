#include "report/svg.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>
#include <limits>

#include "report/table.h"

namespace octet::report {
namespace {

constexpr double kWidth = 860, kHeight = 340, kLeft = 76, kRight = 16, kTop = 40, kBottom = 50;

struct Colours {
  const char *light, *dark;
};
// After Okabe and Ito's palette for colour-blind readers (jfly.uni-koeln.de/color), darkened or lightened to a contrast of
// at least 3:1 on the background of each scheme; lines differ in their dashes too.
constexpr std::array<Colours, 9> kSeries{{{"#1f2328", "#e6e9ed"},
                                          {"#0072b2", "#56b4e9"},
                                          {"#c44e00", "#ff9a57"},
                                          {"#00785a", "#2fc79a"},
                                          {"#a83d7f", "#e39ac4"},
                                          {"#8a6100", "#e6b73c"},
                                          {"#5b4fc4", "#aaa2ff"},
                                          {"#b3261e", "#ff8f88"},
                                          {"#3f6b7d", "#9cc9d8"}}};
constexpr std::array<const char*, 5> kDashes{"none", "9 4", "3 3", "12 4 3 4", "1.5 4"};

struct Range {
  double low = 0, high = 1;
};

double sorted_quantile(std::vector<double>& sorted, double q) {
  return sorted[static_cast<size_t>(std::lround(q * static_cast<double>(sorted.size() - 1)))];
}

Range y_range(const Chart& chart) {
  std::vector<double> values;
  for (const auto& line : chart.lines) {
    std::copy_if(line.curve.y.begin(), line.curve.y.end(), std::back_inserter(values), [](double v) { return std::isfinite(v); });
  }
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  Range r{chart.robust_range ? sorted_quantile(values, 0.01) : values.front(), chart.robust_range ? sorted_quantile(values, 0.95) : values.back()};
  const auto include = [&](double v) { r = {std::min(r.low, v), std::max(r.high, v)}; };
  if (chart.zero_line) include(0);
  if (chart.guide) include(*chart.guide);
  const double pad = r.high > r.low ? 0.08 * (r.high - r.low) : std::max(1e-3, 0.05 * std::abs(r.high));
  return {chart.zero_line && r.low == 0 ? 0 : r.low - pad, r.high + pad};
}

Range x_range(const Chart& chart) {
  Range r{std::numeric_limits<double>::infinity(), 0};
  for (const auto& line : chart.lines) {
    if (!line.curve.empty()) r = {std::min(r.low, line.curve.x.front()), std::max(r.high, line.curve.x.back())};
  }
  if (!(r.low <= r.high)) return {};
  return {r.low < 0.2 * r.high ? 0 : r.low, r.high > r.low ? r.high : r.high + 1};
}

std::string tick_text(double v, bool percent) {
  if (percent) return std::abs(v) < 1e-12 ? "0" : fmt::format("{:+.4g}", v);
  for (const auto& [unit, suffix] : {std::pair{1e12, "T"}, std::pair{1e9, "G"}, std::pair{1e6, "M"}, std::pair{1e3, "K"}}) {
    if (std::abs(v) >= unit) return fmt::format("{:.4g}{}", v / unit, suffix);
  }
  return fmt::format("{:.4g}", std::abs(v) < 1e-12 ? 0 : v);
}

class Plot {
 public:
  explicit Plot(const Chart& chart) : chart_(chart), x_(x_range(chart)), y_(y_range(chart)) {}

  double x(double v) const { return kLeft + (v - x_.low) / (x_.high - x_.low) * (kWidth - kLeft - kRight); }
  double y(double v) const { return std::clamp(kHeight - kBottom - (v - y_.low) / (y_.high - y_.low) * (kHeight - kTop - kBottom), -1e4, 1e4); }

  std::string axes() const {
    std::string out;
    for (double v : nice_ticks(y_.low, y_.high, 6)) {
      out += fmt::format(
          "<line class=\"grid\" x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/><text class=\"tick\" text-anchor=\"end\" x=\"{}\" "
          "y=\"{:.1f}\">{}</text>\n",
          kLeft, kWidth - kRight, y(v), y(v), kLeft - 8, y(v) + 4, tick_text(v, chart_.percent));
    }
    for (double v : nice_ticks(x_.low, x_.high, 8)) {
      out += fmt::format(
          "<line class=\"axis\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{}\" y2=\"{}\"/><text class=\"tick\" text-anchor=\"middle\" x=\"{:.1f}\" "
          "y=\"{}\">{}</text>\n",
          x(v), x(v), kHeight - kBottom, kHeight - kBottom + 5, x(v), kHeight - kBottom + 19, tick_text(v, false));
    }
    out +=
        fmt::format("<line class=\"axis\" x1=\"{}\" x2=\"{}\" y1=\"{}\" y2=\"{}\"/>\n", kLeft, kWidth - kRight, kHeight - kBottom, kHeight - kBottom);
    out += fmt::format("<text class=\"label\" text-anchor=\"middle\" x=\"{}\" y=\"{}\">training tokens</text>\n", (kLeft + kWidth - kRight) / 2,
                       kHeight - 10);
    out += fmt::format("<text class=\"label\" text-anchor=\"middle\" transform=\"translate(18 {}) rotate(-90)\">{}</text>\n",
                       (kTop + kHeight - kBottom) / 2, escape_markup(chart_.y_label));
    return out;
  }

  std::string guides() const {
    std::string out;
    if (chart_.band) {
      const double top = y(*chart_.band), bottom = y(-*chart_.band);
      out += fmt::format("<rect class=\"band\" x=\"{}\" y=\"{:.1f}\" width=\"{}\" height=\"{:.1f}\"/>\n", kLeft, top, kWidth - kLeft - kRight,
                         bottom - top);
    }
    const auto horizontal = [&](double v, const char* cls) {
      out += fmt::format("<line class=\"{}\" x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>\n", cls, kLeft, kWidth - kRight, y(v), y(v));
    };
    if (chart_.zero_line) horizontal(0, "axis");
    if (chart_.guide) {
      horizontal(*chart_.guide, "guide");
      out += fmt::format("<text class=\"tick\" text-anchor=\"end\" x=\"{}\" y=\"{:.1f}\">margin {:+.3g} %</text>\n", kWidth - kRight - 4,
                         y(*chart_.guide) - 5, *chart_.guide);
    }
    return out;
  }

  // The area between the bounds, split where they are not defined.
  std::string interval(const ChartBand& area) const {
    const Curve &upper = area.band.upper, &lower = area.band.lower;
    std::string body;
    for (size_t i = 0; i < upper.x.size();) {
      const auto defined = [&](size_t k) { return k < upper.x.size() && std::isfinite(upper.y[k]) && std::isfinite(lower.y[k]); };
      size_t end = i;
      std::string top, bottom;
      for (; defined(end); ++end) {
        top += fmt::format("{}{:.1f} {:.1f}", end == i ? "M" : "L", x(upper.x[end]), y(upper.y[end]));
        bottom = fmt::format("L{:.1f} {:.1f}", x(lower.x[end]), y(lower.y[end])) + bottom;
      }
      if (end > i + 1) body += "<path d=\"" + top + bottom + "Z\"/>";
      i = end + 1;
    }
    return fmt::format("<g class=\"interval {}\" data-series=\"{}\">{}</g>\n", series_classes(area.series), area.series, body);
  }

  std::string line(const ChartLine& line) const {
    std::string body, path;
    bool pen_down = false;
    for (size_t i = 0; i < line.curve.x.size(); ++i) {
      if (!std::isfinite(line.curve.y[i])) {
        pen_down = false;
        continue;
      }
      const double px = x(line.curve.x[i]), py = y(line.curve.y[i]);
      if (line.points)
        body += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\"/>", px, py);
      else
        path += fmt::format("{}{:.1f} {:.1f}", pen_down ? "L" : "M", px, py);
      pen_down = true;
    }
    if (!path.empty()) body = "<path d=\"" + path + "\"/>";
    return fmt::format("<g class=\"{} {}\" data-series=\"{}\"><title>{}</title>{}</g>\n", line.points ? "points" : "line",
                       series_classes(line.series), line.series, escape_markup(line.label), body);
  }

 private:
  const Chart& chart_;
  Range x_, y_;
};

// One line a group, the baseline first and so below the others.
template <class Pick>
std::vector<ChartLine> lines_of(const Comparison& c, bool with_baseline, Pick pick) {
  std::vector<ChartLine> lines;
  if (with_baseline) lines.push_back({c.baseline.label, 0, pick(c.baseline.curves), false});
  for (size_t i = 0; i < c.groups.size(); ++i) lines.push_back({c.groups[i].label, i + 1, pick(c.groups[i].curves), false});
  return lines;
}

}  // namespace

std::string escape_markup(std::string_view text) {
  std::string out;
  for (char c : terminal_text(text)) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      default: out += c;
    }
  }
  return out;
}

std::vector<double> nice_ticks(double low, double high, int count) {
  std::vector<double> ticks;
  if (!std::isfinite(low) || !std::isfinite(high) || !(high > low) || count < 1) return ticks;
  const double raw = (high - low) / count, power = std::pow(10.0, std::floor(std::log10(raw)));
  double step = 10 * power;
  for (double factor : {5.0, 2.5, 2.0, 1.0}) {
    if (factor * power >= raw * (1 - 1e-9)) step = factor * power;
  }
  const double first = std::ceil(low / step - 1e-9);
  for (int i = 0; i <= count; ++i) {  // a tick is a multiple, not a sum: sums drift
    const double tick = (first + i) * step;
    if (tick > high + 1e-9 * step) break;
    ticks.push_back(tick);
  }
  return ticks;
}

std::string series_classes(size_t series) {
  if (series == 0) return "s0 d0";
  return fmt::format("s{} d{}", 1 + (series - 1) % (kSeries.size() - 1), (series - 1) % kDashes.size());
}

std::string chart_style() {
  std::string light, dark, dashes;
  for (size_t i = 0; i < kSeries.size(); ++i) {
    light += fmt::format(".s{0}{{stroke:{1};color:{1}}}", i, kSeries[i].light);
    dark += fmt::format(".s{0}{{stroke:{1};color:{1}}}", i, kSeries[i].dark);
  }
  for (size_t i = 0; i < kDashes.size(); ++i) dashes += fmt::format(".d{}{{stroke-dasharray:{}}}", i, kDashes[i]);
  return "svg{font-family:system-ui,sans-serif}.page{fill:#fff}.heading{font-size:15px;font-weight:600;fill:#1f2328}.label,.legend{font-size:13px;"
         "fill:#3d444d}"
         ".tick{font-size:12px;fill:#57606a}.grid{stroke:#d8dee4}.axis{stroke:#6e7781}.guide{stroke:#6e7781;stroke-dasharray:2 "
         "4}.band{fill:#6e7781;fill-opacity:.18}"
         ".line{fill:none;stroke-width:1.8;stroke-linejoin:round}.points{fill:currentColor;stroke:none}.interval{fill:currentColor;fill-opacity:.16;stroke:none}\n" +
         light + "\n" + dashes +
         "\n@media "
         "(prefers-color-scheme:dark){.page{fill:#14181d}.heading{fill:#e6e9ed}.label,.legend{fill:#c9d1d9}.tick{fill:#9ea7b3}.grid{stroke:#2d333b}"
         ".axis,.guide{stroke:#8b949e}.band{fill:#8b949e}" +
         dark + "}\n";
}

std::string page_palette() {
  std::string colours, classes;
  for (size_t i = 0; i < kSeries.size(); ++i) {
    colours += fmt::format("--s{}:light-dark({},{});", i, kSeries[i].light, kSeries[i].dark);
    classes += fmt::format(".s{0}{{stroke:var(--s{0});color:var(--s{0})}}", i);
  }
  for (size_t i = 0; i < kDashes.size(); ++i) classes += fmt::format(".d{}{{stroke-dasharray:{}}}", i, kDashes[i]);
  return ":root{" + colours + "}\n" + classes + "\n";
}

bool has_values(const Chart& chart) {
  return std::any_of(chart.lines.begin(), chart.lines.end(), [](const ChartLine& line) {
    return std::any_of(line.curve.y.begin(), line.curve.y.end(), [](double v) { return std::isfinite(v); });
  });
}

std::string chart_svg(const Chart& chart) {
  const Plot plot(chart);
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" role=\"img\" "
      "aria-labelledby=\"{2}-title {2}-desc\">\n<title id=\"{2}-title\">{3}</title><desc id=\"{2}-desc\">{4}</desc>\n",
      kWidth, kHeight, chart.id, escape_markup(chart.title), escape_markup(chart.description));
  out += fmt::format("<text class=\"heading\" x=\"{}\" y=\"22\">{}</text>\n", kLeft, escape_markup(chart.title));
  // Four units wider than the plot, for whole dots at its ends.
  out += fmt::format("<clipPath id=\"{}-clip\"><rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"/></clipPath>\n", chart.id, kLeft - 4, kTop,
                     kWidth - kLeft - kRight + 8, kHeight - kTop - kBottom);
  out += plot.axes() + fmt::format("<g clip-path=\"url(#{}-clip)\">\n", chart.id) + plot.guides();
  for (const auto& area : chart.intervals) out += plot.interval(area);
  for (const auto& line : chart.lines) out += plot.line(line);
  return out + "</g>\n</svg>\n";
}

Chart loss_chart(const Comparison& c) {
  Chart chart{"loss",
              "Loss",
              "Training loss, smoothed, over training tokens; dots are validation losses. Lower is better.",
              "loss (nats per token)",
              lines_of(c, true, [](const GroupCurves& g) { return g.loss; }),
              false,
              false,
              true,
              {},
              {}};
  for (ChartLine line : lines_of(c, true, [](const GroupCurves& g) { return g.valid; })) {
    line.points = true;
    line.label += ", validation";
    chart.lines.push_back(std::move(line));
  }
  return chart;
}

Chart gap_chart(const Comparison& c) {
  Chart chart{"gap",
              "Gap to " + c.baseline.label,
              "Relative difference of the smoothed training losses over training tokens. Above zero is worse than the baseline.",
              "loss difference (%)",
              lines_of(c, false, [](const GroupCurves& g) { return g.gap_percent; }),
              true,
              true,
              true,
              {},
              c.options.margin_percent};
  for (size_t i = 0; i < c.groups.size(); ++i) {
    if (!c.groups[i].curves.gap_interval.upper.empty()) chart.intervals.push_back({i + 1, c.groups[i].curves.gap_interval});
  }
  if (!chart.intervals.empty()) chart.description += " Shaded: 95 % interval of the mean over seeds.";
  if (c.twins && std::isfinite(c.twins->max_gap_percent)) chart.band = c.twins->max_gap_percent;
  return chart;
}

Chart grad_norm_chart(const Comparison& c) {
  return {"grad-norm",
          "Gradient norm",
          "Global gradient norm before clipping, smoothed, over training tokens.",
          "gradient norm",
          lines_of(c, true, [](const GroupCurves& g) { return g.grad_norm; }),
          false,
          false,
          true,
          {},
          {}};
}

Chart throughput_chart(const Comparison& c) {
  return {"throughput",
          "Speed",
          "Training tokens a second, smoothed, over training tokens. Higher is better.",
          "tokens/s",
          lines_of(c, true, [](const GroupCurves& g) { return g.tokens_per_s; }),
          true,
          false,
          false,
          {},
          {}};
}

Chart learning_rate_chart(const Comparison& c) {
  return {"lr",
          "Learning rate",
          "Learning rate over training tokens.",
          "learning rate",
          lines_of(c, true, [](const GroupCurves& g) { return g.lr; }),
          true,
          false,
          false,
          {},
          {}};
}

std::string standalone_svg(const Comparison& c) {
  constexpr size_t per_row = 3;
  std::vector<std::string> labels{c.baseline.label + " (baseline)"};
  for (const Group& group : c.groups) labels.push_back(group.label);
  const double top = 26 + 20 * static_cast<double>((labels.size() + per_row - 1) / per_row), height = top + 2 * kHeight + 8;
  std::string out = fmt::format(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\">\n"
      "<title>Loss comparison with {2}</title>\n<style>{3}</style>\n<rect class=\"page\" width=\"{0}\" height=\"{1}\"/>\n",
      kWidth, height, escape_markup(c.baseline.label), chart_style());
  for (size_t i = 0; i < labels.size(); ++i) {
    const double x = kLeft + 256 * static_cast<double>(i % per_row), y = 24 + 20 * static_cast<double>(i / per_row);
    const std::string shown = labels[i].size() > 27 ? labels[i].substr(0, 24) + "..." : labels[i];
    out += fmt::format("<g class=\"line {}\"><path d=\"M{} {}h34\"/></g><text class=\"legend\" x=\"{}\" y=\"{}\">{}</text>\n", series_classes(i), x,
                       y - 4, x + 42, y, escape_markup(shown));
  }
  out += fmt::format("<g transform=\"translate(0 {})\">{}</g>\n", top, chart_svg(loss_chart(c)));
  out += fmt::format("<g transform=\"translate(0 {})\">{}</g>\n</svg>\n", top + kHeight + 4, chart_svg(gap_chart(c)));
  return out;
}

}  // namespace octet::report
