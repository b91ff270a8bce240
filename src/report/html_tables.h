// The tables of the HTML report: everything the charts show, and the rest, in a form that needs no script and no eyes.
#pragma once
#include <string>
#include <vector>

#include "report/compare.h"
#include "report/svg.h"

namespace octet::report {

struct Cell {
  std::string text;
  const char* css = nullptr;
};

// A table in a box that scrolls sideways; the first column holds row headers. Texts are escaped. At most 1000 rows; the caption says so.
std::string html_table(const std::string& caption, const std::vector<std::string>& head, const std::vector<std::vector<Cell>>& rows);

const char* verdict_class(Verdict verdict);

std::string summary_table(const Comparison& comparison);
std::string pairs_table(const Comparison& comparison);
std::string speed_table(const Comparison& comparison);
// Empty where there is nothing to show.
std::string quantized_table(const Comparison& comparison);
std::string config_table(const Comparison& comparison);
std::string events_table(const Comparison& comparison);
std::string health_table(const Comparison& comparison);

// About twenty points of a chart's lines, with their intervals.
std::string chart_table(const Chart& chart);
// Where each line of a chart ends, in one sentence.
std::string chart_summary(const Chart& chart);

}  // namespace octet::report
