// octet bench step: times of a training step per recipe, as ratios within one run.
#include "app/bench.h"

#include <fmt/format.h>

#include <charconv>
#include <nlohmann/json.hpp>

#include "app/bench_comm.h"
#include "app/bench_ops.h"
#include "app/cli.h"
#include "app/ranks.h"
#include "comm/agree.h"
#include "config/config_io.h"
#include "core/file_io.h"
#include "core/version.h"
#include "cpu/cpu_ops.h"
#include "report/table.h"
#include "ops/machine.h"
#include "train/bench_device.h"
#include "train/bench_step.h"
#include "train/job.h"

namespace octet {
namespace {

const char* const help =
    "Usage: [mpirun -np N] octet bench step --config FILE... [--recipe NAME...] [--rounds N] [--set PATH=VALUE...] [--trace] [--json OUT]\n\n"
    "Times whole training steps (forward, backward, optimizer) on random tokens. For single operators: octet bench gemm --help; for what\n"
    "ranks exchange: octet bench comm --help.\n"
    "On a CPU: the recipes in turn within each round, and OpenBLAS' threaded sgemm at the step's own shapes beside them.\n"
    "Figures of a shared machine are only good as ratios.\n"
    "On a GPU, or several under mpirun: one recipe after another, since a model may fill the card, with tokens a second and the memory in use.\n\n"
    "  --config FILE...   config files, merged left to right, whole as octet train takes them; tokens are made up\n"
    "  --recipe NAME...   recipes to time; on a CPU beside bf16, where NAME+stats gathers FP8 health statistics in every step\n"
    "                     (default: delayed tensorwise rowwise blockwise, on a CPU mxfp8, on a GPU bf16)\n"
    "  --rounds N         rounds after one of warm-up (default 7)\n"
    "  --set PATH=VALUE   set single values, e.g. --set run.threads=2\n"
    "  --trace            GPU: one more step with the time of each kind of operation, waiting for the device behind each\n"
    "  --json OUT         write every figure as JSON\n\n"
    "Examples\n  octet bench step --config configs/bench/cpu_step.json\n"
    "  octet bench step --config configs/bench/llama3_8b_h200.json --recipe bf16 tensorwise\n"
    "  mpirun -np 2 octet bench step --config configs/bench/llama3_8b_h200.json --set batch.global=2\n";

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

nlohmann::json to_json(const DeviceBench& b) {
  nlohmann::json steps = nlohmann::json::array();
  for (const DeviceStepTiming& t : b.steps) {
    nlohmann::json trace = nlohmann::json::array();
    for (const Tracer::Total& o : t.trace) trace.push_back({{"name", o.name}, {"ms", o.ms}, {"count", o.count}, {"flops", o.cost.flops}, {"bytes", o.cost.bytes}});
    steps.push_back({{"recipe", t.recipe}, {"ms", t.ms}, {"median_ms", t.median_ms}, {"min_ms", t.min_ms}, {"max_ms", t.max_ms}, {"tokens_per_s", t.tokens_per_s}, {"mfu_causal", t.mfu},
                     {"loss", t.loss}, {"planned_bytes", t.planned_bytes}, {"used_bytes", t.used_bytes}, {"timed_products", t.timed_products}, {"trace", trace}});
  }
  return {{"code_version", version}, {"device", b.device}, {"layout", b.layout}, {"tokens", b.tokens}, {"flops_per_token", b.flops_per_token}, {"steps", steps}};
}

std::string share(double mfu) { return mfu > 0 ? fmt::format("{:.1f} %", 100 * mfu) : std::string("unknown"); }

void print(const DeviceStepTiming& s) {
  fmt::print("{}: {:.1f} ms a step (median of {}), {:.0f} tokens/s a GPU, MFU {}, device memory {} planned, {} in use\n", s.recipe, s.median_ms, s.ms.size(), s.tokens_per_s, share(s.mfu),
             human_bytes(s.planned_bytes), human_bytes(s.used_bytes));
  if (!s.trace.empty()) {
    Table t({{"operation", Table::Align::left}, {"ms"}, {"times"}, {"TFLOP/s"}});
    for (const Tracer::Total& o : s.trace) {
      if (o.ms < 0.05) continue;
      t.add_row({o.name, fmt::format("{:.2f}", o.ms), fmt::format("{}", o.count), o.cost.flops > 0 ? fmt::format("{:.0f}", o.cost.flops / o.ms * 1e-9) : ""});
    }
    fmt::print("{}", t.text());
  }
  std::fflush(stdout);
}

void print(const DeviceBench& b) {
  Table t({{"step", Table::Align::left}, {"median ms"}, {"min"}, {"max"}, {"tokens/s a GPU"}, {"time / first"}, {"MFU"}, {"planned"}, {"in use"}});
  for (const DeviceStepTiming& s : b.steps) {
    t.add_row({s.recipe, fmt::format("{:.1f}", s.median_ms), fmt::format("{:.1f}", s.min_ms), fmt::format("{:.1f}", s.max_ms), fmt::format("{:.0f}", s.tokens_per_s),
               fmt::format("{:.3f}", s.median_ms / b.steps.front().median_ms), share(s.mfu), human_bytes(s.planned_bytes), human_bytes(s.used_bytes)});
  }
  fmt::print("{}{}: {} tokens a step, {:.1f} GFLOP a token (model_causal)\n{}", b.device, b.layout.empty() ? "" : ", " + b.layout, b.tokens, b.flops_per_token * 1e-9, t.text());
}

struct StepRequest {
  RunConfig config;
  std::vector<std::string> recipes;
  std::string json;
  int rounds = 7;
  bool trace = false, help = false;
};

StepRequest read_step_request(int argc, char** argv, const World& world) {
  const std::vector<cli::Flag> flags = {{"--config", FlagTakes::values}, {"--recipe", FlagTakes::values}, {"--rounds", FlagTakes::value},
                                        {"--set", FlagTakes::values},    {"--json", FlagTakes::value},    {"--trace", FlagTakes::nothing},
                                        {"--help", FlagTakes::nothing}};
  StepRequest r;
  ConfigTree tree;
  std::vector<std::string> expressions;
  for (const cli::Given& g : cli::split_flags(argc - 1, argv + 1, flags)) {
    if (g.name == "--help") r.help = true;
    if (g.name == "--config") {
      for (const std::string& file : g.values) tree.merge_file(file);
    }
    if (g.name == "--recipe") r.recipes.insert(r.recipes.end(), g.values.begin(), g.values.end());
    if (g.name == "--rounds") r.rounds = bench_count(g.values[0], g.name);
    if (g.name == "--trace") r.trace = true;
    if (g.name == "--set") expressions.insert(expressions.end(), g.values.begin(), g.values.end());
    if (g.name == "--json") r.json = g.values[0];
  }
  if (r.help) return r;
  for (const std::string& e : expressions) tree.set_expression(e);
  // Of the recipes that are timed one after another each is validated with the config in its turn; here the first.
  if (!r.recipes.empty()) tree.set("precision.recipe", timed_recipe(r.recipes.front()), "--recipe");
  r.config = from_json(tree.values, tree.origins);
  validate(r.config);
  const bool gpu = device_kind(r.config.run.device) == DeviceKind::cuda;
  if (r.trace && !gpu) throw Error(ExitCode::config, "steps are traced on a GPU only", "--trace", "on a CPU: octet train with log.profile");
  if (world.size() > 1 && !gpu) throw Error(ExitCode::config, "steps of several ranks are timed on GPUs only", "run.device", "start it without mpirun");
  check_job(r.config, world.rank(), world.size());
  if (r.recipes.empty()) r.recipes = gpu ? std::vector<std::string>{"bf16", "tensorwise", "delayed", "rowwise", "blockwise"} : std::vector<std::string>{"delayed", "tensorwise", "rowwise", "blockwise", "mxfp8"};
  return r;
}

int run_bench_step(int argc, char** argv, World& world) {
  const std::unique_ptr<Comm> all = all_ranks(world);
  StepRequest r;
  agree(all.get(), world, [&] { r = read_step_request(argc, argv, world); });
  const bool first = world.rank() == 0;
  if (r.help) {
    if (first) fmt::print("{}", help);
    return 0;
  }
  const auto report = [&](const auto& bench) {
    agree(all.get(), world, [&] {
      if (!first) return;
      print(bench);
      if (!r.json.empty()) write_file_atomic(r.json, to_json(bench).dump(2) + "\n", ExitCode::checkpoint);
    });
    return 0;
  };
  if (device_kind(r.config.run.device) == DeviceKind::cuda) {
    return report(bench_step_on_device(r.config, r.recipes, r.rounds, r.trace, world, all.get(), [&](const DeviceStepTiming& s) {
      if (first) print(s);
    }));
  }
  std::erase(r.recipes, "bf16");  // always measured
  cpu::blas_self_test();
  return report(bench_step(r.config, r.recipes, r.rounds));
}

}  // namespace

int bench_count(const std::string& text, const std::string& flag) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1 || value > 1000) {
    throw Error(ExitCode::config, fmt::format("\"{}\" is not a number from 1 to 1000", text), flag, "for example " + flag + " 7");
  }
  return value;
}

int run_bench(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "--help" || what == "-h") {
    fmt::print("{}", help);
    return 0;
  }
  if (what == "gemm" || what == "quantize" || what == "attention") return run_bench_ops(what, argc, argv);
  if (what == "comm") return run_bench_comm(argc, argv);
  if (what != "step") {
    if (what.empty()) throw Error(ExitCode::usage, "octet bench needs to know what to measure", {}, "use octet bench step, gemm, quantize, attention or comm");
    cli::fail_unknown("benchmark", what, {"step", "gemm", "quantize", "attention", "comm"});
  }
  return run_job([&](World& world) { return run_bench_step(argc, argv, world); });
}

}  // namespace octet
