#include "app/doctor.h"

#include <fmt/format.h>

#include <algorithm>

#include "app/cli.h"
#include "config/config_io.h"
#include "core/version.h"
#include "cpu/cpu_ops.h"
#include "ops/inventory.h"
#include "recipe/hardware.h"
#include "report/table.h"
#include "train/engine.h"

namespace octet {
namespace {

const char* const help =
    "Usage: octet doctor [--config FILE...] [--set PATH=VALUE...]\n\n"
    "Says what is here (versions, processors, GPUs with free memory) and which recipe their tensor cores compute natively, which octet\n"
    "emulates (precision.emulate: operands are decoded to BF16), and why. With --config also whether `octet train` could start with it here.\n\n"
    "  --config FILE...   config files, merged left to right\n"
    "  --set PATH=VALUE   set single values, e.g. --set precision.recipe=blockwise\n\n"
    "Exit code: 0; 1 when the given config could not start here.\n\n"
    "Examples\n  octet doctor\n  octet doctor --config configs/models/tiny_byte.json configs/runs/quickstart.json configs/recipes/blockwise.json\n";

std::string cuda_version(int v) { return v > 0 ? fmt::format("{}.{}", v / 1000, v % 1000 / 10) : std::string("none"); }

void print_machine(const Inventory& here) {
  fmt::print("octet {}\n", version);
  const double gflops = cpu::blas_self_test();
  fmt::print("CPU: {} usable cores; BLAS {:.0f} GFLOP/s a core\n", usable_cores(), gflops);
  if (!here.built_with_cuda) {
    fmt::print("GPU: this octet was built without CUDA\n");
    return;
  }
  fmt::print("CUDA: runtime {}, driver for {}, {}\n", cuda_version(here.runtime_version), cuda_version(here.driver_version), here.product_library);
  if (here.gpus.empty()) fmt::print("GPU: {}\n", here.driver_version > 0 ? "none that this process can use" : "no NVIDIA driver on this machine");
  for (const Inventory::Gpu& g : here.gpus) {
    fmt::print("GPU {}: {}, compute capability {}, {} multiprocessors, {} of memory, UUID {}\n", g.index, g.name, to_string(g.capability), g.multiprocessors, human_bytes(g.memory_bytes), g.uuid);
    if (!g.usable) fmt::print("       not usable: octet's kernels are compiled for {}\n", here.architectures);
  }
}

// The recipes of the table; custom is whatever a config says.
void print_matrix(const Inventory& here) {
  std::vector<Capability> columns;
  for (const Inventory::Gpu& g : here.gpus) {
    if (std::find(columns.begin(), columns.end(), g.capability) == columns.end()) columns.push_back(g.capability);
  }
  const bool real = !columns.empty();
  if (!real) columns = {{8, 9}, {9, 0}, {10, 0}, {12, 0}};
  fmt::print("\nRecipes by compute capability{} (a CPU computes all of them):\n", real ? "" : ", as documented");
  std::vector<Table::Column> header{{"recipe", Table::Align::left}};
  for (const Capability c : columns) header.push_back({to_string(c), Table::Align::left});
  Table t(header);
  std::vector<std::string> reasons;
  for (const std::string& name : recipe_names()) {
    if (name == "custom") continue;
    PrecisionConfig p;
    p.recipe = name;
    p.calibration_steps = 1;   // static scales may come from it
    const Recipe recipe = make_recipe(name, p);
    std::vector<std::string> row{name};
    for (const Capability c : columns) {
      const RecipeSupport s = recipe_support(recipe, c);
      if (s.native()) {
        row.emplace_back("native");
        continue;
      }
      const auto at = std::find(reasons.begin(), reasons.end(), s.text());
      row.push_back(fmt::format("emulated [{}]", at - reasons.begin() + 1));
      if (at == reasons.end()) reasons.push_back(s.text());
    }
    t.add_row(row);
  }
  fmt::print("{}", t.text());
  for (size_t i = 0; i < reasons.size(); ++i) fmt::print("[{}] {}\n", i + 1, reasons[i]);
  fmt::print("Emulated recipes need precision.emulate; without it they are refused. Only 9.0 was measured.\n");
}

// A dry run, which refuses what the run would refuse.
bool print_config(const RunConfig& config) {
  try {
    Engine engine(config, Engine::Memory::plan_only);
    const Machine& machine = engine.machine();
    fmt::print("\nThis config: {}, on {}, {} of memory planned\n", config.precision.recipe, machine.name(), human_bytes(engine.memory().total()));
    if (machine.kind() == DeviceKind::cuda) {
      const std::string text = recipe_support(engine.model().precision().base(), machine.capability()).text();
      fmt::print("Its products: {}\n", text == "native" ? text : "emulated: " + text);
      const Inventory here = take_inventory();
      if (here.gpus.empty()) throw Error(ExitCode::device, "no GPU is here", "run.device", "set it to \"cpu\" or \"auto\"");
      if (engine.memory().total() > here.gpus.front().memory_bytes) {
        throw Error(ExitCode::config, fmt::format("{} are planned, the GPU has {}", human_bytes(engine.memory().total()), human_bytes(here.gpus.front().memory_bytes)), "memory plan",
                    "use a smaller micro-batch or sequence, recompute more, or optim.master_weights and optim.moments");
      }
    }
    fmt::print("octet train could start with it (data and run directory are not looked at).\n");
    return true;
  } catch (const Error& e) {
    fmt::print("\nThis config could not start here: {}\n", e.what());
    return false;
  }
}

}  // namespace

int run_doctor(int argc, char** argv) {
  const std::vector<cli::Flag> flags = {{"--config", FlagTakes::values}, {"--set", FlagTakes::values}, {"--help", FlagTakes::nothing}};
  ConfigTree tree;
  std::vector<std::string> expressions;
  bool given = false;
  for (const cli::Given& g : cli::split_flags(argc, argv, flags)) {
    if (g.name == "--help") {
      fmt::print("{}", help);
      return 0;
    }
    if (g.name == "--config") {
      for (const std::string& file : g.values) tree.merge_file(file);
      given = true;
    }
    if (g.name == "--set") expressions = g.values;
  }
  if (!given && !expressions.empty()) throw Error(ExitCode::usage, "--set changes a config, but none is given", {}, "give --config FILE too");
  RunConfig config;
  if (given) {
    for (const std::string& e : expressions) tree.set_expression(e);
    if (!tree.values.contains("data") || !tree.values["data"].contains("train")) tree.set_expression("data.train=[{\"path\":\"unused\"}]");
    config = from_json(tree.values, tree.origins);
    validate(config);
  }
  const Inventory here = take_inventory();
  print_machine(here);
  print_matrix(here);
  return given && !print_config(config) ? 1 : 0;
}

}  // namespace octet
