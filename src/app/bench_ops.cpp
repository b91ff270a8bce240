#include "app/bench_ops.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "app/bench.h"
#include "app/cli.h"
#include "config/config_io.h"
#include "core/file_io.h"
#include "core/version.h"
#include "cpu/cpu_ops.h"
#include "ops/machine.h"
#include "report/table.h"
#include "train/bench_ops.h"

namespace octet {
namespace {

const char* const bench_ops_help =
    "Usage: octet bench gemm|quantize|attention [--config FILE...] [--recipe NAME...] [--rounds N] [--set PATH=VALUE...] [--json OUT]\n\n"
    "Times single operators at the shapes of one micro-batch of a config's model, on the machine of run.device.\n"
    "gemm: forward, input gradient and weight gradient of each linear layer, as ratios to BF16; quantize: images of activations, alone and\n"
    "fused into norm and SwiGLU, as shares of a copy's bandwidth; attention: forward and backward.\n\n"
    "  --config FILE...   config files, merged left to right; model, batch.micro, data.seq_len, run.device and run.threads are used\n"
    "                     (default: the layers of Llama-3-8B, 8192 tokens on a GPU, 128 on a CPU)\n"
    "  --recipe NAME...   recipes for gemm and quantize (default: tensorwise delayed rowwise blockwise)\n"
    "  --rounds N         rounds a figure is the median of (default 7)\n"
    "  --set PATH=VALUE   set single values, e.g. --set batch.micro=2\n"
    "  --json OUT         write every figure as JSON\n\n"
    "Examples\n  octet bench gemm\n  octet bench attention --config configs/models/qwen3_8b.json configs/bench/llama3_8b_h200.json\n";

nlohmann::json to_json(const std::string& what, const OpBench& b) {
  nlohmann::json rows = nlohmann::json::array();
  for (const OpTiming& t : b.rows) {
    rows.push_back({{"group", t.group}, {"name", t.name}, {"ms", t.ms}, {"min_ms", t.min_ms}, {"max_ms", t.max_ms}, {"flops", t.flops}, {"bytes", t.bytes}, {"ratio", t.ratio}});
  }
  return {{"code_version", version}, {"bench", what}, {"machine", b.machine}, {"ratios_to", b.reference}, {"rows", rows}};
}

void print(const OpBench& b) {
  const bool ratios = !b.reference.empty(), products = b.rows.front().flops > 0;
  std::vector<Table::Column> columns{{"operator", Table::Align::left}, {"", Table::Align::left}, {"ms"}, {"min"}, {"max"}, {products ? "GFLOP/s" : "GB/s"}};
  if (ratios) columns.push_back({"of " + b.reference});
  Table t(columns);
  std::string group;
  for (const OpTiming& r : b.rows) {
    std::vector<std::string> row{r.group == group ? std::string() : r.group, r.name, fmt::format("{:.3f}", r.ms), fmt::format("{:.3f}", r.min_ms), fmt::format("{:.3f}", r.max_ms),
                                 fmt::format("{:.0f}", (products ? r.flops : r.bytes) / r.ms * 1e-6)};
    if (ratios) row.push_back(products ? fmt::format("{:.2f}x", r.ratio) : fmt::format("{:.0f} %", 100 * r.ratio));
    t.add_row(row);
    group = r.group;
  }
  fmt::print("{}\n{}", b.machine, t.text());
}

}  // namespace

nlohmann::json stand_in_config(bool gpu) {
  return {{"model", {{"vocab_size", 128256}, {"hidden_size", 4096}, {"intermediate_size", 14336}, {"num_hidden_layers", 1}, {"num_attention_heads", 32}, {"num_key_value_heads", 8},
                     {"head_dim", 128}}},
          {"data", {{"seq_len", gpu ? 8192 : 128}, {"split", "100,0,0"}, {"train", {{{"path", "synthetic"}}}}}},
          {"batch", {{"micro", 1}, {"global", 1}}},
          {"optim", {{"lr", 1e-4}}},
          {"run", {{"steps", 1}}}};
}

int run_bench_ops(const std::string& what, int argc, char** argv) {
  const std::vector<cli::Flag> flags = {{"--config", FlagTakes::values}, {"--recipe", FlagTakes::values}, {"--rounds", FlagTakes::value}, {"--set", FlagTakes::values},
                                        {"--json", FlagTakes::value},    {"--help", FlagTakes::nothing}};
  ConfigTree tree;
  std::vector<std::string> asked, expressions;
  std::string json;
  int rounds = 7;
  bool given = false;
  for (const cli::Given& g : cli::split_flags(argc - 1, argv + 1, flags)) {
    if (g.name == "--help") {
      fmt::print("{}", bench_ops_help);
      return 0;
    }
    if (g.name == "--config") {
      for (const std::string& file : g.values) tree.merge_file(file);
      given = true;
    }
    if (g.name == "--recipe") asked.insert(asked.end(), g.values.begin(), g.values.end());
    if (g.name == "--rounds") rounds = bench_count(g.values[0], g.name);
    if (g.name == "--set") expressions.insert(expressions.end(), g.values.begin(), g.values.end());
    if (g.name == "--json") json = g.values[0];
  }
  const std::vector<std::string> recipes = asked.empty() ? std::vector<std::string>{"tensorwise", "delayed", "rowwise", "blockwise"} : asked;
  if (!given) {
    const bool on_cpu = std::find(expressions.begin(), expressions.end(), "run.device=cpu") != expressions.end() || device_kind("auto") == DeviceKind::cpu;
    tree.values = stand_in_config(!on_cpu);
  }
  for (const std::string& e : expressions) tree.set_expression(e);
  RunConfig config = from_json(tree.values, tree.origins);
  validate(config);
  if (device_kind(config.run.device) == DeviceKind::cpu) cpu::blas_self_test();
  const OpBench bench = what == "gemm" ? bench_gemm(config, recipes, rounds) : what == "quantize" ? bench_quantize(config, recipes, rounds) : bench_attention(config, rounds);
  print(bench);
  if (!json.empty()) write_file_atomic(json, to_json(what, bench).dump(2) + "\n", ExitCode::checkpoint);
  return 0;
}

}  // namespace octet
