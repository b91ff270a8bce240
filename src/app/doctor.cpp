// octet doctor: versions, devices, the hardware matrix; with a config, whether octet train would start here.
#include "app/doctor.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "app/cli.h"
#include "comm/launch.h"
#include "config/config_io.h"
#include "config/nearest.h"
#include "core/thread_pool.h"
#include "core/version.h"
#include "cpu/cpu_ops.h"
#include "recipe/hardware.h"
#include "report/table.h"
#include "train/device_groups.h"
#include "train/engine.h"
#include "train/job.h"
#include "train/session.h"
#ifdef OCTET_HAVE_CUDA
#include "cuda/inventory.h"
#endif

namespace octet {
namespace {

const char* const doctor_help =
    "Usage: octet doctor [--config FILE...] [--set PATH=VALUE...]\n\n"
    "What is on this machine (versions, GPUs, processor), and which recipes it computes:\n"
    "  native     the GPU has the matrix products\n"
    "  emulated   it has not; with precision.emulate the operands are multiplied in BF16, without it the recipe is refused\n"
    "  refused    neither\n"
    "With a config: the same for its own recipe and rules, and whether octet train would start here, in one process: device, recipe, memory, data.\n"
    "For several: octet train --dry-run under mpirun.\n\n"
    "  --config FILE...   config files, merged left to right\n"
    "  --set PATH=VALUE   set single values, e.g. --set run.device=cuda\n\n"
    "Exit code 1 when a config is given and the run could not start here. docs/reference/hardware.md explains the table.\n\n"
    "Examples\n  octet doctor\n  octet doctor --config configs/models/tiny_byte.json configs/runs/quickstart.json\n";

constexpr size_t width = 118;

struct Gpu {
  std::string name;
  Capability capability;
  size_t free = 0, total = 0;   // free: all there is where nobody says
  bool free_known = false;
};

// What of the machine decides; printed while it is found.
struct Findings {
  std::vector<Gpu> gpus;
  std::string no_gpu;            // why there is none
  std::string architectures;
  std::string blas_fault;        // what the self test says
};

// Words broken into lines of `width`; the first begins with `head`, the others with as many spaces.
std::string wrapped(const std::string& head, const std::string& text) {
  std::string out = head, word;
  size_t column = head.size();
  bool first = true;
  const auto put = [&] {
    if (word.empty()) return;
    if (!first && column + 1 + word.size() > width) {
      out += "\n" + std::string(head.size(), ' ');
      column = head.size();
    } else if (!first) {
      out += ' ';
      ++column;
    }
    out += word;
    column += word.size();
    word.clear();
    first = false;
  };
  for (const char c : text) {
    if (c == ' ') put(); else word += c;
  }
  put();
  return out + "\n";
}

void line(const char* label, const std::string& text) { fmt::print("{}", wrapped(fmt::format("{:<12}", label), text)); }

std::string compiler() {
#ifdef __clang__
  return "clang " __clang_version__;
#else
  return "g++ " __VERSION__;
#endif
}

std::string processor_name() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string row; std::getline(in, row);) {
    const size_t colon = row.find(": ");
    if (row.starts_with("model name") && colon != std::string::npos) return terminal_text(row.substr(colon + 2));
  }
  return "unknown processor";
}

void print_processor(Findings& f) {
  __builtin_cpu_init();
  const char* yes_no[] = {"no", "yes"};
  line("processor", fmt::format("{}, {} usable cores, AVX2 {}, AVX-512 {}", processor_name(), usable_cores(), yes_no[__builtin_cpu_supports("avx2") != 0], yes_no[__builtin_cpu_supports("avx512f") != 0]));
  try {
    line("BLAS", fmt::format("self-test right, {:.1f} GFLOP/s a core", cpu::blas_self_test()));
  } catch (const Error& e) {
    f.blas_fault = e.what();
    line("BLAS", f.blas_fault);
  }
}

#ifdef OCTET_HAVE_CUDA
void print_gpus(Findings& f) {
  const cuda::Inventory found = cuda::take_inventory();
  f.architectures = found.architectures;
  line("CUDA", fmt::format("compiled with {} and cuBLASLt {} for compute capability {}; here: runtime {}, cuBLASLt {}, driver {}", found.toolkit, found.cublaslt_compiled, found.architectures,
                           found.runtime, found.cublaslt.empty() ? "none" : found.cublaslt, found.driver.empty() ? "none" : "for CUDA up to " + found.driver));
  if (found.devices.empty()) f.no_gpu = found.no_devices;
  for (const cuda::InstalledDevice& d : found.devices) {
    f.gpus.push_back({terminal_text(d.name), {d.major, d.minor}, d.free_bytes.value_or(d.total_bytes), d.total_bytes, d.free_bytes.has_value()});
    line(fmt::format("GPU {}", d.index).c_str(), fmt::format("{}, compute capability {}, {} multiprocessors, {} of memory ({}), {}", terminal_text(d.name), name(Capability{d.major, d.minor}),
                                                             d.multiprocessors, human_bytes(d.total_bytes), d.free_bytes ? human_bytes(*d.free_bytes) + " free" : "free: unknown, no NVML", d.uuid));
  }
}
#else
void print_gpus(Findings& f) { f.no_gpu = "this octet was built without CUDA"; }
#endif

Findings print_machine() {
  Findings f;
  line("octet", fmt::format("{}, compiled by {}", version, compiler()));
  line("MPI", mpi_library());
  print_processor(f);
  print_gpus(f);
  line("NCCL", nccl_library().empty() ? "not in this build: ranks on GPUs would exchange through the host's memory" : nccl_library());
  if (f.gpus.empty()) line("GPU", "none: " + f.no_gpu);
  return f;
}

// Those of the GPUs here, once each; without a GPU the ones that differ.
std::vector<Capability> columns(const Findings& f) {
  if (f.gpus.empty()) return known_capabilities();
  std::vector<Capability> all;
  for (const Gpu& g : f.gpus) all.push_back(g.capability);
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

struct Row {
  std::string label;
  const Recipe* recipe;
};

// A line a recipe, a column a capability; below it the reasons, each with the recipes and capabilities that it holds for.
void print_matrix(const char* title, const std::vector<Row>& rows, const std::vector<Capability>& on, bool emulate) {
  std::vector<Table::Column> heads{{title, Table::Align::left}};
  for (const Capability c : on) heads.push_back({c == known_capabilities().front() ? "below 8.9" : name(c), Table::Align::left});
  Table table(heads);
  struct Reason {
    std::string text, where, recipes;
  };
  std::vector<Reason> reasons;
  for (const Row& row : rows) {
    std::vector<std::string> cells{row.label};
    std::vector<Reason> own;
    for (size_t i = 0; i < on.size(); ++i) {
      const Verdict v = recipe_support(*row.recipe, on[i], emulate).whole;
      cells.emplace_back(name(v.support));
      if (v.support == Support::native) continue;
      const auto known = std::find_if(own.begin(), own.end(), [&](const Reason& r) { return r.text == v.reason; });
      if (known == own.end()) own.push_back({v.reason, heads[i + 1].title, row.label});
      else known->where += ", " + heads[i + 1].title;
    }
    for (Reason& r : own) {
      const auto known = std::find_if(reasons.begin(), reasons.end(), [&](const Reason& k) { return k.text == r.text && k.where == r.where; });
      if (known == reasons.end()) reasons.push_back(std::move(r));
      else known->recipes += ", " + row.label;
    }
    table.add_row(cells);
  }
  fmt::print("\n{}", table.text());
  if (reasons.empty()) return;
  fmt::print("\nWhy not native\n");
  for (const Reason& r : reasons) fmt::print("  {}", wrapped("    ", fmt::format("{} ({}): {}", r.recipes, r.where, r.text)).substr(4));
}

void print_recipes(const Findings& f) {
  PrecisionConfig p;
  p.calibration_steps = 1;   // `static` wants magnitudes or this
  std::vector<Recipe> recipes;
  for (const std::string& n : recipe_names()) {
    if (n != "custom") recipes.push_back(make_recipe(n, p));
  }
  std::vector<Row> rows;
  for (const Recipe& r : recipes) rows.push_back({r.name, &r});
  print_matrix("recipe", rows, columns(f), true);
  fmt::print("\nThe CPU computes every recipe. What is emulated runs with precision.emulate only, and is refused without it.\n");
}

// The modules of each recipe of the config: "layers.0.attn.qkv, layers.0.attn.out and 6 more".
std::vector<std::pair<const Recipe*, std::vector<std::string>>> modules_by_recipe(const PrecisionPolicy& policy, const std::vector<std::string>& modules) {
  std::vector<std::pair<const Recipe*, std::vector<std::string>>> groups;
  for (const std::string& module : modules) {
    const Recipe* r = &recipe_of(policy, module);
    auto group = std::find_if(groups.begin(), groups.end(), [&](const auto& g) { return g.first == r; });
    if (group == groups.end()) group = groups.insert(groups.end(), {r, {}});
    group->second.push_back(module);
  }
  return groups;
}

// The device octet train would take; throws as it would.
DeviceKind chosen_device(const RunConfig& c, const Findings& f) {
  const DeviceKind kind = device_kind(c.run.device);
  if (kind == DeviceKind::cpu) {
    if (!f.blas_fault.empty()) throw Error(ExitCode::config, f.blas_fault);
    return kind;
  }
  if (f.gpus.empty()) throw Error(ExitCode::device, f.no_gpu, "run.device", "set it to \"cpu\" or \"auto\"");
  const Gpu& gpu = f.gpus.front();
  if (!compiled_for(f.architectures, gpu.capability)) {
    throw Error(ExitCode::device, fmt::format("octet's kernels were compiled for compute capability {}, {} has {}", f.architectures, gpu.name, name(gpu.capability)), "run.device",
                fmt::format("build with -DOCTET_CUDA_ARCHS={}{}, or set run.device to \"cpu\"", gpu.capability.major, gpu.capability.minor));
  }
  return kind;
}

// Everything octet train checks before its first step, in its order; what it would take, or the error it would end with.
std::string check_start(const RunConfig& c, const Findings& f) {
  const DeviceKind kind = chosen_device(c, f);
  check_job(c, 0, 1);
  const DataSession data(c);
  Engine engine(c, Engine::Memory::plan_only);
  const size_t planned = engine.memory().total();
  if (kind == DeviceKind::cpu) return fmt::format("on the CPU, {} planned", human_bytes(planned));
  const Gpu& gpu = f.gpus.front();
  if (planned > gpu.free) {
    throw Error(ExitCode::device, fmt::format("{} are planned, {} of {} are {}", human_bytes(planned), human_bytes(gpu.free), gpu.name, gpu.free_known ? "free" : "there"), "memory plan",
                "use a smaller model, micro-batch or sequence, or recompute more");
  }
  return fmt::format("on {}, {} planned of {} {}", gpu.name, human_bytes(planned), human_bytes(gpu.free), gpu.free_known ? "free" : "in all");
}

int print_run(const RunConfig& c, const Findings& f) {
  QuantRegistry sites;
  const Model model(c, sites);
  const auto groups = modules_by_recipe(model.precision(), model.module_paths());
  std::vector<Row> rows;
  for (const auto& [recipe, modules] : groups) rows.push_back({recipe->name, recipe});
  print_matrix("this config", rows, columns(f), c.precision.emulate);
  fmt::print("\n");
  for (const auto& [recipe, modules] : groups) {
    std::string list;
    constexpr size_t shown = 4;
    for (size_t i = 0; i < std::min(shown, modules.size()); ++i) list += (i ? ", " : "") + modules[i];
    if (modules.size() > shown) list += fmt::format(" and {} more", modules.size() - shown);
    line(recipe->name.c_str(), list);
  }
  fmt::print("\n");
  try {
    line("octet train", "would start here, " + check_start(c, f));
    return static_cast<int>(ExitCode::ok);
  } catch (const Error& e) {
    line("octet train", fmt::format("would not start here (exit code {}): {}", static_cast<int>(e.code), printable(e.what(), 2000)));
    return static_cast<int>(ExitCode::verdict_no);
  }
}

}  // namespace

int run_doctor(int argc, char** argv) {
  const std::vector<cli::Flag> flags = {{"--config", FlagTakes::values}, {"--set", FlagTakes::values}, {"--help", FlagTakes::nothing}};
  ConfigTree tree;
  std::vector<std::string> expressions;
  for (const cli::Given& g : cli::split_flags(argc, argv, flags)) {
    if (g.name == "--help") {
      fmt::print("{}", doctor_help);
      return 0;
    }
    if (g.name == "--config") {
      for (const std::string& file : g.values) tree.merge_file(file);
    }
    if (g.name == "--set") expressions.insert(expressions.end(), g.values.begin(), g.values.end());
  }
  for (const std::string& e : expressions) tree.set_expression(e);
  std::optional<RunConfig> config;   // read before anything is printed: a config that is wrong is an error like any other
  if (!tree.values.empty()) {
    config = from_json(tree.values, tree.origins);
    validate(*config);
    QuantRegistry sites;
    const Model rules_match(*config, sites);   // throws for a rule that matches nothing
  }
  const Findings f = print_machine();
  print_recipes(f);
  return config ? print_run(*config, f) : 0;
}

}  // namespace octet
