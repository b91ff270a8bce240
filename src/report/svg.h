// Line charts as SVG: inline in the HTML report or standalone. Colours, dashes and fonts come from one style sheet with a
// light and a dark half; nothing is loaded from elsewhere.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "report/compare.h"

namespace octet::report {

// &, <, >, " and ' as entities; control characters and invalid UTF-8 as '?'.
std::string escape_markup(std::string_view text);

// At most `count` + 1 round numbers (1, 2, 2.5 or 5 times a power of ten) inside [low, high].
std::vector<double> nice_ticks(double low, double high, int count);

struct ChartLine {
  std::string label;
  size_t series = 0;  // 0: the baseline; colour and dash
  Curve curve;
  bool points = false;  // dots and no line: validations
};

struct ChartBand {
  size_t series = 0;
  CurveBand band;
};

struct Chart {
  std::string id;  // of the title and description elements; letters and dashes
  std::string title, description;
  std::string y_label;  // with unit
  std::vector<ChartLine> lines;
  bool zero_line = false;  // show and include y = 0
  bool percent = false;    // y ticks with a sign
  // Shows the range of the 1st to the 95th percentile: the first steps would flatten the rest.
  bool robust_range = false;
  std::optional<double> band;   // shaded from -band to +band
  std::optional<double> guide;  // dashed horizontal line
  std::vector<ChartBand> intervals = {};  // shaded in the colour of their series
};

// CSS classes for charts: s0..s8 (colours, light and dark), d0..d4 (dashes). Plain properties: many SVG tools know no variables.
std::string chart_style();

// Custom properties --s0..--s8 (light and dark) and the classes s0.., d0.. that use them, for a page whose reader may choose the scheme.
std::string page_palette();

// "s2 d1": the classes of a series.
std::string series_classes(size_t series);

// <svg>...</svg>, 860 x 340 units, for inlining below chart_style().
std::string chart_svg(const Chart& chart);

Chart loss_chart(const Comparison& comparison);
Chart gap_chart(const Comparison& comparison);
Chart grad_norm_chart(const Comparison& comparison);
Chart throughput_chart(const Comparison& comparison);
Chart learning_rate_chart(const Comparison& comparison);

// Gap and 95 % interval of each group beside the margin, as rows of one figure (a forest plot); empty without groups.
std::string forest_svg(const Comparison& comparison);

// Whether a line of the chart has a finite value.
bool has_values(const Chart& chart);

// A standalone SVG file: loss curves above the gap, with a legend.
std::string standalone_svg(const Comparison& comparison);

}  // namespace octet::report
