#include "app/compare.h"

#include <charconv>
#include <cmath>
#include <cxxopts.hpp>
#include <fmt/format.h>
#include <iostream>

#include "config/nearest.h"

namespace octet {
namespace {

[[noreturn]] void usage_error(const std::string& what, const std::string& fix = "see 'octet compare --help'") {
  throw Error(ExitCode::usage, what, "octet compare", fix);
}

cxxopts::Options make_options() {
  cxxopts::Options options("octet compare",
                           "Compares the loss of training runs with their baselines (BF16 unless told otherwise), paired by seed.\n\n"
                           "  octet compare runs/bf16 runs/blockwise --out report.html\n"
                           "  octet compare runs/* --max-gap 0.4 --json gaps.json\n\n"
                           "A RUN is a run directory, a TensorBoard folder, or a CSV file with the columns step,tokens,loss.");
  options.custom_help("RUN... [options]").positional_help("");
  const auto text = [] { return cxxopts::value<std::string>(); };
  options.add_options()                                                                                                                         //
      ("baseline", "a run to compare with; repeat for more seeds (default: runs with recipe bf16, else the first run)", text(), "RUN")          //
      ("twin", "a baseline from slightly perturbed weights: shows how much chance alone does; repeatable", text(), "RUN")                       //
      ("out", "write the report as one HTML file", text(), "FILE")                                                                              //
      ("json", "write every number as JSON", text(), "FILE")                                                                                    //
      ("svg", "write the loss and gap charts as SVG", text(), "FILE")                                                                           //
      ("max-gap", "exit with 1 unless the upper bound of each gap (the gap itself for one pair) is below PCT; may be negative", text(), "PCT")  //
      ("margin", "how much worse counts as equal, for the verdict, in percent (default 0.25)", text(), "PCT")                                   //
      ("h,help", "print this help");
  return options;
}

double percent(const std::string& option, const std::string& word) {
  double value = 0;
  const char *begin = word.data() + (word.starts_with("+") && !word.starts_with("+-") ? 1 : 0), *end = word.data() + word.size();
  const auto [stop, error] = std::from_chars(begin, end, value);
  if (error != std::errc() || stop != end || !std::isfinite(value)) {
    usage_error(fmt::format("--{} needs a number (percent), not '{}'", option, printable(word)), fmt::format("for example --{} 0.4", option));
  }
  return value;
}

void check_known(const std::string& word) {
  const std::vector<std::string> names{"baseline", "twin", "out", "json", "svg", "max-gap", "margin", "help"};
  if (word.size() < 2 || word[0] != '-') return;
  const std::string name = word.substr(word.find_first_not_of('-') == std::string::npos ? word.size() : word.find_first_not_of('-'));
  const std::string close = nearest(name.substr(0, name.find('=')), names);
  usage_error(fmt::format("unknown option {}; did you mean --{}?", printable(word.substr(0, word.find('='))), close));
}

}  // namespace

std::optional<report::CompareRequest> parse_compare(int argc, char** argv) {
  cxxopts::Options options = make_options();
  options.allow_unrecognised_options();  // checked below, to name the nearest
  cxxopts::ParseResult words;
  try {
    words = options.parse(argc, argv);
  } catch (const cxxopts::exceptions::exception& error) {
    usage_error(error.what());
  }
  if (words.count("help")) {
    std::cout << options.help();
    return std::nullopt;
  }
  report::CompareRequest request;
  for (const std::string& word : words.unmatched()) {
    check_known(word);
    request.runs.emplace_back(word);
  }
  for (const auto& item : words.arguments()) {
    const std::string &key = item.key(), &value = item.value();
    if (value.empty() || value.starts_with("--")) usage_error(fmt::format("--{} needs a value", key));
    if (key == "baseline")
      request.baselines.emplace_back(value);
    else if (key == "twin")
      request.twins.emplace_back(value);
    else if (key == "out")
      request.html = value;
    else if (key == "json")
      request.json = value;
    else if (key == "svg")
      request.svg = value;
    else if (key == "max-gap")
      request.options.max_gap_percent = percent(key, value);
    else if (key == "margin")
      request.options.margin_percent = percent(key, value);
  }
  if (!(request.options.margin_percent > 0)) {
    throw Error(ExitCode::config, fmt::format("{:g} is not a positive percentage", request.options.margin_percent), "--margin",
                "for example --margin 0.25");
  }
  if (request.runs.empty() && request.twins.empty()) usage_error("no RUN given", "give run directories or CSV files: octet compare RUN RUN");
  return request;
}

int run_compare(int argc, char** argv) {
  const auto request = parse_compare(argc, argv);
  return request ? static_cast<int>(report::run_comparison(*request, std::cout)) : 0;
}

}  // namespace octet
