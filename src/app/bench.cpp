// octet bench step: times of a training step per recipe, as ratios within one run.
#include "app/bench.h"

#include <fmt/format.h>

#include <charconv>
#include <nlohmann/json.hpp>

#include "app/cli.h"
#include "config/config_io.h"
#include "core/file_io.h"
#include "core/version.h"
#include "cpu/cpu_ops.h"
#include "report/table.h"
#include "train/bench_step.h"

namespace octet {
namespace {

const char* const help =
    "Usage: octet bench step --config FILE... [--recipe NAME...] [--rounds N] [--set PATH=VALUE...] [--json OUT]\n\n"
    "Times whole training steps (forward, backward, optimizer) on random tokens, the recipes in turn within each round, and\n"
    "OpenBLAS' threaded sgemm at the step's own shapes beside them. Figures of a shared machine are only good as ratios.\n\n"
    "  --config FILE...   config files, merged left to right; model, batch, data.seq_len and run.threads are used\n"
    "  --recipe NAME...   recipes to time beside bf16 (default: delayed tensorwise rowwise blockwise mxfp8);\n"
    "                     NAME+stats gathers FP8 health statistics in every step\n"
    "  --rounds N         rounds after one of warm-up (default 7)\n"
    "  --set PATH=VALUE   set single values, e.g. --set run.threads=2\n"
    "  --json OUT         write every figure as JSON\n\n"
    "Example\n  octet bench step --config configs/bench/cpu_step.json\n";

nlohmann::json to_json(const StepBench& b) {
  nlohmann::json steps = nlohmann::json::array();
  for (const StepTiming& t : b.steps) {
    steps.push_back({{"recipe", t.recipe}, {"ms", t.ms}, {"median_ms", t.median_ms}, {"min_ms", t.min_ms}, {"max_ms", t.max_ms}, {"ratio_to_bf16", t.ratio_to_bf16}});
  }
  return {{"code_version", version}, {"threads", b.threads},          {"tokens", b.tokens}, {"gemm_gflop", b.gemm_gflop}, {"sgemm_ms", b.sgemm_ms},
          {"sgemm_median_ms", b.sgemm_median_ms}, {"bf16_share_of_sgemm", b.bf16_share}, {"steps", steps}};
}

void print(const StepBench& b) {
  Table t({{"step", Table::Align::left}, {"median ms"}, {"min"}, {"max"}, {"time / BF16"}, {"GFLOP/s in GEMMs"}});
  const auto row = [&](const std::string& name, double median, double low, double high, const std::string& ratio) {
    t.add_row({name, fmt::format("{:.1f}", median), fmt::format("{:.1f}", low), fmt::format("{:.1f}", high), ratio, fmt::format("{:.1f}", b.gemm_gflop / median * 1e3)});
  };
  for (const StepTiming& s : b.steps) row(s.recipe, s.median_ms, s.min_ms, s.max_ms, fmt::format("{:.3f}", s.ratio_to_bf16));
  const auto [low, high] = std::minmax_element(b.sgemm_ms.begin(), b.sgemm_ms.end());
  row("sgemm alone", b.sgemm_median_ms, *low, *high, "");
  fmt::print("{} tokens a step, {:.2f} GFLOP in its matrix products, {} threads\n{}", b.tokens, b.gemm_gflop, b.threads, t.text());
  fmt::print("BF16 step: {:.1f} % of the speed of sgemm alone at the same shapes (median over rounds)\n", 100 * b.bf16_share);
}

int positive_int(const std::string& text, const std::string& flag) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1 || value > 1000) {
    throw Error(ExitCode::config, fmt::format("\"{}\" is not a number from 1 to 1000", text), flag, "for example " + flag + " 7");
  }
  return value;
}

}  // namespace

int run_bench(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "--help" || what == "-h") {
    fmt::print("{}", help);
    return 0;
  }
  if (what != "step") {
    if (what.empty()) throw Error(ExitCode::usage, "octet bench needs to know what to measure", {}, "use octet bench step");
    cli::fail_unknown("benchmark", what, {"step"});
  }
  const std::vector<cli::Flag> flags = {{"--config", FlagTakes::values}, {"--recipe", FlagTakes::values}, {"--rounds", FlagTakes::value},
                                        {"--set", FlagTakes::values},    {"--json", FlagTakes::value},    {"--help", FlagTakes::nothing}};
  ConfigTree tree;
  std::vector<std::string> recipes{"delayed", "tensorwise", "rowwise", "blockwise", "mxfp8"}, expressions;
  std::string json;
  int rounds = 7;
  for (const cli::Given& g : cli::split_flags(argc - 1, argv + 1, flags)) {
    if (g.name == "--help") {
      fmt::print("{}", help);
      return 0;
    }
    if (g.name == "--config") {
      for (const std::string& file : g.values) tree.merge_file(file);
    }
    if (g.name == "--recipe") {
      recipes = g.values;
      std::erase(recipes, "bf16");  // always measured
    }
    if (g.name == "--rounds") rounds = positive_int(g.values[0], g.name);
    if (g.name == "--set") expressions = g.values;
    if (g.name == "--json") json = g.values[0];
  }
  for (const std::string& e : expressions) tree.set_expression(e);
  RunConfig config = from_json(tree.values, tree.origins);
  validate(config);
  cpu::blas_self_test();
  const StepBench bench = bench_step(config, recipes, rounds);
  print(bench);
  if (!json.empty()) write_file_atomic(json, to_json(bench).dump(2) + "\n", ExitCode::checkpoint);
  return 0;
}

}  // namespace octet
