// The order of a run: check everything that can be checked, then lock the run directory, then speak, then train.
#include "train/train.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>

#include "checkpoint/run_dir.h"
#include "comm/agree.h"
#include "config/config_io.h"
#include "config/model_size.h"
#include "config/nearest.h"
#include "config/resume_diff.h"
#include "core/error_text.h"
#include "core/file_io.h"
#include "core/version.h"
#include "cpu/cpu_ops.h"
#include "recipe/hardware.h"
#include "report/table.h"
#include "train/checkpointing.h"
#include "train/cores.h"
#include "train/health_lines.h"
#include "train/device_groups.h"
#include "train/job.h"
#include "train/loop.h"

namespace octet {
namespace {

std::string memory_table(const RunConfig& c, const MemoryPlan& m) {
  const bool gpu = m.device == DeviceKind::cuda;
  Table t({{gpu ? "device memory" : "memory", Table::Align::left}, {"size"}});
  // Masters that are the working weights too stay on the device (model/param.h).
  const auto placed = [](std::string row, bool on_host) { return on_host ? row + ", on the host" : row; };
  t.add_row({placed(c.optim.master_weights == "fp32" ? "master weights (FP32)" : "16-bit remainders of the master weights", m.offloaded && m.working), human_bytes(m.master)});
  t.add_row({placed(fmt::format("Adam moments ({})", c.optim.moments == "fp32" ? "FP32" : "BF16"), m.offloaded != 0), human_bytes(m.moments)});
  t.add_row({"gradients (FP32)", human_bytes(m.gradients)});
  t.add_row({c.precision.recipe == "fp32" ? "working weights of other ranks' rows (FP32)" : "working weights (BF16)", human_bytes(m.working)});
  t.add_row({"quantized weight images", human_bytes(m.images)});
  const auto sum = [](const auto& slots) { return std::accumulate(slots.begin(), slots.end(), size_t{0}); };
  if (sum(m.lent_grads) > 0) t.add_row({"gradients of the layers at hand (FP32)", human_bytes(sum(m.lent_grads))});
  if (sum(m.lent_working) > 0) t.add_row({"weights of the layers at hand, their images", human_bytes(sum(m.lent_working))});
  if (m.communication > 0) t.add_row({"communication", human_bytes(m.communication)});
  t.add_row({"activations of a micro-batch", human_bytes(m.activations)});
  t.add_row({"scratch", human_bytes(m.scratch)});
  if (gpu) {
    t.add_row({"tokens, scales and sums", human_bytes(m.state)});
    t.add_row({"CUDA context and cuBLASLt workspace", human_bytes(m.overhead)});
    if (m.nccl > 0) t.add_row({"NCCL", human_bytes(m.nccl)});
  } else {
    t.add_row({"batches read ahead, validation set", human_bytes(m.batches)});
  }
  t.add_row({m.offloaded ? "total on the device" : "total", human_bytes(m.total())});
  if (!gpu) return t.text();
  return t.text() + fmt::format("host memory of batches read ahead and of the validation set: {}\n", human_bytes(m.batches));
}

// Why other products stand in for those of the run's recipe: on a GPU because it has not all of them, on the CPU because no Hopper tensor core has.
std::string emulation(Engine& engine) {
  const Recipe& r = engine.model().precision().base();
  return engine.machine().kind() == DeviceKind::cuda ? recipe_support(r, engine.machine().capability(), true).whole.reason : r.emulation();
}

std::string banner(const RunConfig& c, Engine& engine, DataSession& data) {
  const Recipe& r = engine.model().precision().base();
  const int64_t per_step = c.batch.global * c.data.seq_len;
  Machine& machine = engine.machine();
  std::string text = fmt::format("octet {} | recipe {} | {} parameters | {} | gemm {}\n", version, r.name, human_count(static_cast<double>(parameter_count(c.model))), machine.name(),
                                 machine.kind() == DeviceKind::cpu ? c.run.cpu_gemm : machine.product_library().empty() ? "cuBLASLt" : machine.product_library());
  for (size_t k = 0; k < data.sources(); ++k) {
    const data::GptDataset& source = data.train(k);
    text += fmt::format("data: {} ({} tokens, {} epochs of the training split)", c.data.train[k].path, source.set().tokens(), source.epochs());
    text += data.sources() > 1 ? fmt::format(" | {:.2f} % of the samples\n", 100 * data.share(k)) : " | ";
  }
  const Mesh& mesh = engine.mesh();
  const int64_t micro_batches = c.batch.global / c.batch.micro / mesh.layout().dp();
  text += fmt::format("{} steps of {} tokens ({} micro-batches of {} x {}{})\n", c.run.steps, per_step, micro_batches, c.batch.micro, c.data.seq_len, mesh.alone() ? "" : " on each rank");
  if (!mesh.alone()) {
    text += layout_text(mesh.layout());
    if (mesh.layout().dp() > 1) text += mesh.shards() ? fmt::format(", zero {}", c.parallel.zero) : ", nothing sharded";
    if (c.parallel.sequence_parallel) text += ", sequence parallel";
    if (c.parallel.fp8_param_gather && mesh.shards()) text += ", weights gathered in FP8";
    if (c.parallel.fp8_activation_gather) text += ", activations gathered in FP8";
    if (machine.kind() == DeviceKind::cuda) text += uses_nccl(c) ? ", through NCCL" : ", through the host's memory and MPI";
    text += '\n';
  }
  if (const std::string why = emulation(engine); !why.empty()) {
    text += fmt::format("emulation: {}; products of {} decoded operands stand in for it\n", why, machine.kind() == DeviceKind::cuda ? "BF16 copies of" : "exactly");
  }
  if (c.precision.calibration_steps > 0) text += fmt::format("calibration: the first {} steps collect magnitudes\n", c.precision.calibration_steps);
  if (r.uses(Scaling::delayed)) text += fmt::format("delayed scaling: history of {} steps ({})\n", c.precision.amax_history_len.value_or(0), c.precision.amax_compute_algo);
  return text;
}

// What the run starts from, read before the run directory is touched.
struct StartingPoint {
  std::optional<Checkpoint> checkpoint;   // to go on from
  std::optional<Checkpoint> initial;      // to take weights from
  RunState state;
  ProductChoices products;                // the checkpoint's algorithms
  std::string present;                    // names of the checkpoints there were, to notice a run that writes meanwhile
  std::vector<std::string> notes;
  std::vector<ConfigChange> changes;      // of the config, since the run began
  bool new_order = false;                 // --allow-config-change let the data change: the sample order begins anew
};

std::string checkpoint_names(const std::filesystem::path& checkpoints) {
  std::vector<std::string> names;
  std::error_code missing;
  for (const auto& entry : std::filesystem::directory_iterator(checkpoints, missing)) {
    if (parse_step_name(entry.path().filename().string())) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return fmt::format("{}", fmt::join(names, " "));
}

// Compares with the config the run had before; forbidden changes are refused, those that warn fall under --strict.
void note_changes(const nlohmann::json& saved, const nlohmann::json& resolved, const TrainOptions& options, std::vector<ConfigChange>& changes) {
  changes = config_changes(saved, resolved);
  check_config_changes(changes, options.allow_config_change);
}

// An allowed change after which the checkpoint's sample order means nothing.
bool changes_sample_order(const std::vector<ConfigChange>& changes) {
  constexpr std::string_view keys[] = {"data.train", "data.blend_cache", "data.split", "data.seq_len", "data.seed", "data.partial_samples"};
  return std::any_of(changes.begin(), changes.end(), [&](const ConfigChange& c) {
    return c.allowed && std::any_of(std::begin(keys), std::end(keys), [&](std::string_view key) { return c.path == key || c.path.starts_with(std::string(key) + "."); });
  });
}

std::string change_table(const std::vector<ConfigChange>& changes) {
  Table t({{"changed on resume", Table::Align::left}, {"was", Table::Align::left}, {"is", Table::Align::left}, {"", Table::Align::left}});
  for (const ConfigChange& c : changes) {
    const char* note = c.allowed ? "allowed by --allow-config-change" : c.on_resume == OnResume::warn ? "warning: may change the result" : "";
    t.add_row({terminal_text(c.path), change_text(c.before), change_text(c.now), note});
  }
  return t.text();
}

// A directory without a checkpoint may be what is left of a run that ended early; anything else is not ours to write in.
void check_unsaved_run(const std::filesystem::path& dir, const nlohmann::json& resolved, const TrainOptions& options, std::vector<ConfigChange>& changes) {
  const auto config = dir / "config.resolved.json";
  std::error_code unreadable;  // RunDir::open says what is wrong with it
  if (!std::filesystem::exists(config, unreadable)) return;
  note_changes(to_json(from_json(load_config_file(config.string()))), resolved, options, changes);
}

// Reads the checkpoint to go on from and adapts config and resolved to it.
void read_checkpoint(const std::filesystem::path& path, const TrainOptions& options, StartingPoint& start, RunConfig& config, nlohmann::json& resolved) {
  start.checkpoint = Checkpoint::open(path);
  start.state = read_state(*start.checkpoint);
  const nlohmann::json& state = start.checkpoint->state();
  const nlohmann::json saved = state.is_object() && state.contains("config") ? state["config"] : nlohmann::json();
  if (!saved.is_object()) throw Error(ExitCode::checkpoint, "the state has no usable \"config\"", path.string(), "resume from another checkpoint");
  // Defaults that were derived from the first run's length stay, also in a longer run: the schedule and the histories are those it began with.
  for (const std::string& key : options.derived) {
    const nlohmann::json::json_pointer pointer(key);
    if (!saved.contains(pointer)) continue;
    const nlohmann::json own = std::exchange(resolved[pointer], saved[pointer]);
    const RunConfig c = from_json(resolved);
    if (c.sched.type == "constant" || c.sched.decay_steps.value_or(0) <= c.run.steps - c.sched.warmup_steps) continue;
    resolved[pointer] = own;  // the run was made shorter than its decay
    start.notes.push_back(fmt::format("the decay of {} steps does not fit a run of {}: it takes {}", *c.sched.decay_steps, c.run.steps, own.dump()));
  }
  config = from_json(resolved);
  note_changes(saved, resolved, options, start.changes);
}

void announce(const RunConfig& config, Engine& engine, DataSession& data, const StartingPoint& start, double peak, Console& console, MetricsWriter& metrics) {
  console.message(banner(config, engine, data) + memory_table(config, engine.memory()));
  if (engine.machine().kind() == DeviceKind::cpu) {
    console.message(fmt::format("MFU: model_causal FLOPs against {:.0f} GFLOP/s (one core's sgemm, measured now, times the cores in use)", peak * 1e-9));
  } else if (peak > 0) {
    console.message(fmt::format("MFU: model_causal FLOPs against {:.0f} TFLOP/s (dense BF16 of the data sheet)", peak * 1e-12));
  }
  for (const std::string& note : start.notes) {
    console.message("warning: " + note);
    metrics.event("warning", {{"text", note}});
  }
  const std::string from = start.checkpoint ? start.checkpoint->path().string() : "";
  if (!start.changes.empty()) console.message(change_table(start.changes));
  for (const ConfigChange& c : start.changes) {
    metrics.event("config_change", {{"path", c.path}, {"was", c.before}, {"is", c.now}, {"class", c.on_resume == OnResume::free ? "free" : c.allowed ? "allowed" : "warning"}});
  }
  nlohmann::json sources = nlohmann::json::array();
  for (size_t k = 0; k < data.sources(); ++k) sources.push_back({{"tokens", data.train(k).set().tokens()}, {"sequences", data.train(k).set().sequences()}});
  metrics.event("start", {{"code_version", version},
                          {"step", start.state.step},
                          {"resumed_from", from},
                          {"weights_from", start.initial ? start.initial->path().string() : ""},
                          {"recipe", engine.model().precision().base().name},
                          {"emulation", emulation(engine)},
                          {"parameters", engine.model().parameter_count()},
                          {"device", engine.machine().name()},
                          {"threads", engine.machine().pool().threads()},
                          {"memory_bytes", engine.memory().total()},
                          {"ranks", engine.mesh().size()},
                          {"layout", layout_text(engine.mesh().layout())},
                          {"data", sources}});
  if (const auto watched = engine.quant().health(); !watched.empty()) metrics.event("stats_sites", {{"sites", health_sites(watched)}});
  if (start.checkpoint) console.message(fmt::format("resumed from {} at step {}", from, start.state.step));
  if (start.new_order) {
    console.message(fmt::format("a new sample order begins behind step {}; samples that the run has seen may come again", start.state.step));
    metrics.event("new_sample_order", {{"step", start.state.step}, {"samples", start.state.samples}});
  }
  if (start.initial) console.message(fmt::format("weights taken from {}", start.initial->path().string()));
}

// The glob of a --dump that this run can fulfil; empty without one.
std::string dump_modules(const RunConfig& config, const TrainOptions& options) {
  const auto request = parse_dump_request(options.dump);
  if (!request) return {};
  const auto& again = config.recompute.modules;
  if (config.recompute.swiglu_inputs == "fp8" && std::find(again.begin(), again.end(), "swiglu") != again.end()) {
    throw Error(ExitCode::config, "weight gradients read an input that backward makes again of rounded values, and a dump has forward's", "--dump",
                "set recompute.swiglu_inputs to \"bf16\", or take \"swiglu\" from recompute.modules");
  }
  if (request->step > config.run.steps) throw Error(ExitCode::config, fmt::format("step {} of a run of {} steps", request->step, config.run.steps), "--dump", "give a step of the run");
  QuantRegistry quant;
  const std::vector<std::string> paths = Model(config, quant).module_paths();
  if (std::none_of(paths.begin(), paths.end(), [&](const std::string& p) { return glob_match(request->modules, p); })) {
    throw Error(ExitCode::config, fmt::format("\"{}\" matches no module", request->modules), "--dump", "module paths look like " + paths.front());
  }
  return request->modules;
}

// A glob that matches nothing would silently give no statistics.
void check_stats_modules(const RunConfig& config, Engine& engine) {
  if (config.log.stats_interval == 0) return;
  const std::vector<std::string> paths = engine.model().module_paths();
  for (const std::string& glob : config.log.stats_modules) {
    if (std::any_of(paths.begin(), paths.end(), [&](const std::string& p) { return glob_match(glob, p); })) continue;
    throw Error(ExitCode::config, fmt::format("\"{}\" matches no module", printable(glob)), "log.stats_modules", "module paths look like " + paths.front());
  }
}

ExitCode dry_run(const RunConfig& config, const TrainOptions& options, const Mesh& mesh, World& world, Comm* all) {
  std::optional<DataSession> data;
  std::optional<Engine> plan;
  agree(all, world, [&] {
    data.emplace(config);
    plan.emplace(config, Engine::Memory::plan_only, dump_modules(config, options), &mesh);
    check_stats_modules(config, *plan);
  });
  if (!mesh.first()) return ExitCode::ok;
  Engine& engine = *plan;
  fmt::print("{}{}", banner(config, engine, *data), memory_table(config, engine.memory()));
  for (const std::string& note : data->notes()) fmt::print("warning: {}\n", note);
  for (const std::string& note : engine.model().precision().base().notes) fmt::print("warning: {}\n", note);
  fmt::print("FLOPs a token (model_causal): {}\n", human_count(flops_per_token(config.model, config.data.seq_len)));
  return ExitCode::ok;
}

void prepare_products(const RunConfig& config, Engine& engine, StartingPoint& start, Console& console) {
  if (config.run.gemm_choice != "timed") start.products.clear();
  const ProductTiming products = engine.prepare_products(start.products);
  console.message(fmt::format("matrix products: {} timed, {} as the checkpoint has them{}; device memory in use: {} of {}", products.timed, start.products.size(),
                              products.too_large ? fmt::format(", {} too large to be timed", products.too_large) : std::string(), human_bytes(engine.machine().memory_use().used),
                              human_bytes(engine.machine().memory_use().total)));
}

// The threads of a rank that shares its machine: as many as it has cores.
void divide_threads(RunConfig& config, const World& world, double cores) {
  constexpr double rounding = 1e-6;   // of thirds
  if (config.run.threads == 0 && world.local_size() > 1) config.run.threads = std::max(1, static_cast<int>(cores + rounding));
}

// Cores that compute, over all ranks.
double cores_in_use(const Mesh& mesh, int threads, double own) {
  const double used = std::min<double>(threads, own);
  return mesh.all() ? 1e-6 * static_cast<double>(sum_of(*mesh.all(), std::llround(1e6 * used))) : used;
}

// Everything about where the run starts that can be wrong without an engine. newest: the checkpoint to go on from, empty without one; initial: whose weights to take.
void find_start(const std::string& newest, const std::string& initial, const TrainOptions& options, StartingPoint& start, std::optional<DataSession>& data, RunConfig& config,
                nlohmann::json& resolved) {
  const Resume mode = resume_mode(config.ckpt.resume);
  if (mode != Resume::never && newest.empty()) check_unsaved_run(config.run.dir, resolved, options, start.changes);
  if (!newest.empty()) read_checkpoint(newest, options, start, config, resolved);
  if (!options.init_from.empty() && config.run.init_perturbation != 0) {
    throw Error(ExitCode::config, "initial weights are perturbed, those of --init-from are not", "run.init_perturbation", "leave out one of the two");
  }
  if (!initial.empty()) start.initial = Checkpoint::open(initial);
  start.new_order = changes_sample_order(start.changes);
  if (start.new_order) start.state.blend = {(config.run.steps - start.state.step) * config.batch.global, {}, start.state.samples};
  data.emplace(config, start.checkpoint && !start.new_order ? &start.state.sources : nullptr, start.checkpoint ? &start.state.blend : nullptr, start.state.samples);
  start.state.sources = data->states();
  start.state.blend = data->blend_state();
  start.notes.insert(start.notes.end(), data->notes().begin(), data->notes().end());
}

void load_start(StartingPoint& start, Engine& engine) {
  if (start.checkpoint) {
    for (std::string& note : restore_run(*start.checkpoint, engine)) start.notes.push_back(std::move(note));
    start.products = saved_products(*start.checkpoint, engine.machine(), start.notes);
  } else if (start.initial) {
    load_weights(*start.initial, engine);
  }
}

// Notes that are known now, and the errors that --strict makes of them.
void complete_notes(const RunConfig& config, const TrainOptions& options, Engine& engine, StartingPoint& start) {
  const auto& recipe_notes = engine.model().precision().base().notes;
  if (engine.machine().kind() == DeviceKind::cuda && !engine.mesh().alone() && config.parallel.backend == "auto" && !config.parallel.share_gpus && !uses_nccl(config)) {
    start.notes.push_back("parallel.backend: this octet was built without NCCL, so GPUs exchange through the host's memory");
  }
  start.notes.insert(start.notes.end(), recipe_notes.begin(), recipe_notes.end());
  // A run resumed behind the traced steps is no mistake: it has the trace already.
  if (config.log.profile && config.log.profile_start > config.run.steps) {
    start.notes.push_back(fmt::format("log.profile: nothing to trace, steps {} to {} of a run of {}", config.log.profile_start, config.log.profile_end - 1, config.run.steps));
  }
  const auto warned = std::find_if(start.changes.begin(), start.changes.end(), [](const ConfigChange& c) { return c.on_resume == OnResume::warn; });
  if (options.strict && warned != start.changes.end()) {
    throw Error(ExitCode::config, fmt::format("{} was {} and is {} in the resumed run", warned->path, change_text(warned->before), change_text(warned->now)), "--strict",
                "keep the old value, or leave out --strict");
  }
  if (options.strict && !start.notes.empty()) throw Error(ExitCode::config, start.notes.front(), "--strict", "repair what the message names, or leave out --strict");
}

// What the run writes besides checkpoints and curves. Of a job's ranks the first one has all of it; what the others say goes nowhere.
struct Outputs {
  std::optional<RunDir> dir;
  std::optional<LogFile> log;
  std::optional<MetricsWriter> metrics;
  std::ostream nowhere{nullptr};
  std::optional<Console> console;

  // shows_bar: not in a job, whose launcher gives its ranks terminals of their own also where nobody looks.
  void open(const RunConfig& config, const nlohmann::json& resolved, const StartingPoint& start, bool shows_bar) {
    dir.emplace(RunDir::open(config.run.dir, resume_mode(config.ckpt.resume)));
    if (checkpoint_names(dir->checkpoints_dir()) != start.present) {
      throw Error(ExitCode::config, "another process wrote a checkpoint while this one was starting", config.run.dir, "start it again");
    }
    if (start.state.step >= config.run.steps) return;
    remove_leftovers(dir->path() / "config.resolved.json");
    write_file_atomic(dir->path() / "config.resolved.json", resolved.dump(2) + "\n", ExitCode::checkpoint);
    log.emplace(dir->path() / "log.txt");
    metrics.emplace(dir->path());
    ConsoleOptions view;
    view.total_steps = config.run.steps;
    view.log_interval = config.log.interval;
    if (config.log.console == "megatron") view.megatron = MegatronLine{config.batch.global, config.data.seq_len, flops_per_token(config.model, config.data.seq_len)};
    if (shows_bar) view.width = [] { return terminal_width(STDOUT_FILENO); };
    console.emplace(std::cout, view, [this](std::string_view line) { log->write(line); });
  }
  void open_silent() {
    metrics.emplace();
    console.emplace(nowhere, ConsoleOptions{});
  }
};

}  // namespace

ExitCode train(const RunConfig& requested, const TrainOptions& options, const nlohmann::json& resolved_request, World& world, Comm* all) {
  RunConfig config = requested;
  nlohmann::json resolved = resolved_request;
  agree(all, world, [&] {
    check_job(config, world.rank(), world.size());
    if (world.size() > 1 && !options.dump.empty()) throw Error(ExitCode::config, "a dump is of one process", "--dump", "start the run without mpirun for it");
  });
  Mesh mesh(config, world);
  const double cores = own_cores(world, all);
  divide_threads(config, world, cores);
  const bool on_cpu = device_kind(config.run.device) == DeviceKind::cpu;
  double core_gflops = 0;
  agree(all, world, [&] {
    if (on_cpu || config.run.shadow) core_gflops = cpu::blas_self_test();
  });
  if (options.dry_run) return dry_run(config, options, mesh, world, all);

  // A refusal must leave nothing behind: everything that can be wrong is found before the run directory is made and locked.
  check_shared_directory(config.run.dir, save_group(mesh));
  StartingPoint start;
  const auto checkpoints = std::filesystem::path(config.run.dir) / "checkpoints";
  const std::string newest = from_first(all, world, [&]() -> std::string {
    check_config_changes(start.changes, options.allow_config_change);   // names that are no keys, also where nothing is resumed
    start.present = checkpoint_names(checkpoints);
    if (resume_mode(config.ckpt.resume) == Resume::never || !has_checkpoints(checkpoints)) return {};
    return latest_checkpoint(checkpoints, start.notes).value_or("").string();
  });
  const std::string initial = from_first(all, world, [&]() -> std::string {
    // A requeued job goes on from its own checkpoint.
    return options.init_from.empty() || !newest.empty() ? std::string() : resolve_checkpoint(options.init_from, start.notes).string();
  });
  std::optional<DataSession> data;
  agree(all, world, [&] { find_start(newest, initial, options, start, data, config, resolved); });
  divide_threads(config, world, cores);
  std::optional<Engine> engine;
  agree(all, world, [&] {
    engine.emplace(config, Engine::Memory::plain, dump_modules(config, options), &mesh);
    check_stats_modules(config, *engine);
  });
  if (!on_cpu && !mesh.alone()) {
    join_devices(config, world, mesh, engine->machine());
  }
  engine->join_ranks();
  agree(all, world, [&] { load_start(start, *engine); });
  Outputs out;
  agree(all, world, [&] {
    complete_notes(config, options, *engine, start);
    if (mesh.first()) out.open(config, resolved, start, mesh.alone());
    else out.open_silent();
  });
  if (start.state.step >= config.run.steps) {
    if (mesh.first()) fmt::print("nothing to do: the run in {} is at step {} of {}\n", config.run.dir, start.state.step, config.run.steps);
    return ExitCode::ok;
  }
  const double peak = on_cpu ? core_gflops * 1e9 * cores_in_use(mesh, engine->machine().pool().threads(), cores) : engine->machine().peak_flops();
  announce(config, *engine, *data, start, peak, *out.console, *out.metrics);
  if (!on_cpu) prepare_products(config, *engine, start, *out.console);
  try {
    return TrainLoop(config, options, resolved, *engine, *data, config.run.dir, *out.console, *out.metrics, start.state, peak).run();
  } catch (...) {
    if (mesh.alone()) throw;
    out.console->finish();
    end_rank(world);
  }
}

}  // namespace octet
