// The order of a run: check everything that can be checked, then lock the run directory, then speak, then train.
#include "train/train.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <utility>

#include "config/config_io.h"
#include "config/model_size.h"
#include "config/nearest.h"
#include "config/resume_diff.h"
#include "core/file_io.h"
#include "core/version.h"
#include "cpu/cpu_ops.h"
#include "report/table.h"
#include "train/health_lines.h"
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
  t.add_row({"working weights (BF16)", human_bytes(m.working)});
  t.add_row({"quantized weight images", human_bytes(m.images)});
  t.add_row({"activations of a micro-batch", human_bytes(m.activations)});
  t.add_row({"scratch", human_bytes(m.scratch)});
  if (gpu) {
    t.add_row({"tokens, scales and sums", human_bytes(m.state)});
    t.add_row({"CUDA context and cuBLASLt workspace", human_bytes(m.overhead)});
  } else {
    t.add_row({"batches read ahead, validation set", human_bytes(m.batches)});
  }
  t.add_row({m.offloaded ? "total on the device" : "total", human_bytes(m.total())});
  if (!gpu) return t.text();
  return t.text() + fmt::format("host memory of batches read ahead and of the validation set: {}\n", human_bytes(m.batches));
}

std::string banner(const RunConfig& c, Engine& engine, DataSession& data) {
  const Recipe& r = engine.model().precision().base();
  const int64_t per_step = c.batch.global * c.data.seq_len;
  Machine& machine = engine.machine();
  std::string text = fmt::format("octet {} | recipe {} | {} parameters | {} | gemm {}\n", version, r.name, human_count(static_cast<double>(parameter_count(c.model))), machine.name(),
                                 machine.kind() == DeviceKind::cpu ? c.run.cpu_gemm : machine.product_library());
  for (size_t k = 0; k < data.sources(); ++k) {
    const data::GptDataset& source = data.train(k);
    text += fmt::format("data: {} ({} tokens, {} epochs of the training split)", c.data.train[k].path, source.set().tokens(), source.epochs());
    text += data.sources() > 1 ? fmt::format(" | {:.2f} % of the samples\n", 100 * data.share(k)) : " | ";
  }
  text += fmt::format("{} steps of {} tokens ({} micro-batches of {} x {})\n", c.run.steps, per_step, c.batch.global / c.batch.micro, c.batch.micro, c.data.seq_len);
  if (!r.emulation().empty()) text += fmt::format("emulation: {}; products of exactly decoded operands stand in for it\n", r.emulation());
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

// Reads the newest checkpoint and adapts config and resolved to it.
void read_checkpoint(const std::filesystem::path& checkpoints, const TrainOptions& options, StartingPoint& start, RunConfig& config, nlohmann::json& resolved) {
  const auto path = latest_checkpoint(checkpoints, start.notes);
  if (!path) return;
  start.checkpoint = Checkpoint::open(*path);
  start.state = read_state(*start.checkpoint);
  const nlohmann::json& state = start.checkpoint->state();
  const nlohmann::json saved = state.is_object() && state.contains("config") ? state["config"] : nlohmann::json();
  if (!saved.is_object()) throw Error(ExitCode::checkpoint, "the state has no usable \"config\"", path->string(), "resume from another checkpoint");
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
                          {"emulation", engine.model().precision().base().emulation()},
                          {"parameters", engine.model().parameter_count()},
                          {"device", engine.machine().name()},
                          {"threads", engine.machine().pool().threads()},
                          {"memory_bytes", engine.memory().total()},
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

ExitCode dry_run(const RunConfig& config, const TrainOptions& options) {
  DataSession data(config);
  Engine engine(config, Engine::Memory::plan_only, dump_modules(config, options));
  check_stats_modules(config, engine);
  fmt::print("{}{}", banner(config, engine, data), memory_table(config, engine.memory()));
  for (const std::string& note : data.notes()) fmt::print("warning: {}\n", note);
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

}  // namespace

ExitCode train(const RunConfig& requested, const TrainOptions& options, const nlohmann::json& resolved_request) {
  RunConfig config = requested;
  nlohmann::json resolved = resolved_request;
  const bool on_cpu = device_kind(config.run.device) == DeviceKind::cpu;
  const double core_gflops = on_cpu || config.run.shadow ? cpu::blas_self_test() : 0;
  if (options.dry_run) return dry_run(config, options);

  // A refusal must leave nothing behind: everything that can be wrong is found before the run directory is made and locked.
  StartingPoint start;
  check_config_changes(start.changes, options.allow_config_change);   // names that are no keys, also where nothing is resumed
  const Resume mode = resume_mode(config.ckpt.resume);
  const auto checkpoints = std::filesystem::path(config.run.dir) / "checkpoints";
  if (mode != Resume::never && !has_checkpoints(checkpoints)) check_unsaved_run(config.run.dir, resolved, options, start.changes);
  start.present = checkpoint_names(checkpoints);
  if (mode != Resume::never && has_checkpoints(checkpoints)) read_checkpoint(checkpoints, options, start, config, resolved);
  if (!options.init_from.empty()) {
    if (config.run.init_perturbation != 0) {
      throw Error(ExitCode::config, "initial weights are perturbed, those of --init-from are not", "run.init_perturbation", "leave out one of the two");
    }
    if (!start.checkpoint) {  // a requeued job goes on from its own checkpoint
      start.initial = Checkpoint::open(resolve_checkpoint(options.init_from, start.notes));
    }
  }
  const bool new_order = changes_sample_order(start.changes);
  if (new_order) start.state.blend = {(config.run.steps - start.state.step) * config.batch.global, {}, start.state.samples};
  DataSession data(config, start.checkpoint && !new_order ? &start.state.sources : nullptr, start.checkpoint ? &start.state.blend : nullptr, start.state.samples);
  start.new_order = new_order;
  start.state.sources = data.states();
  start.state.blend = data.blend_state();
  start.notes.insert(start.notes.end(), data.notes().begin(), data.notes().end());
  Engine engine(config, Engine::Memory::plain, dump_modules(config, options));
  check_stats_modules(config, engine);
  if (start.checkpoint) {
    for (std::string& note : restore_run(*start.checkpoint, engine)) start.notes.push_back(std::move(note));
    start.products = saved_products(*start.checkpoint, engine.machine(), start.notes);
  } else if (start.initial) {
    load_weights(*start.initial, engine);
  }
  const auto& recipe_notes = engine.model().precision().base().notes;
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

  RunDir run_dir = RunDir::open(config.run.dir, mode);
  if (checkpoint_names(checkpoints) != start.present) {
    throw Error(ExitCode::config, "another process wrote a checkpoint while this one was starting", config.run.dir, "start it again");
  }
  if (start.state.step >= config.run.steps) {
    fmt::print("nothing to do: the run in {} is at step {} of {}\n", config.run.dir, start.state.step, config.run.steps);
    return ExitCode::ok;
  }
  remove_leftovers(run_dir.path() / "config.resolved.json");
  write_file_atomic(run_dir.path() / "config.resolved.json", resolved.dump(2) + "\n", ExitCode::checkpoint);
  LogFile log(run_dir.path() / "log.txt");
  MetricsWriter metrics(run_dir.path());
  ConsoleOptions view;
  view.total_steps = config.run.steps;
  view.log_interval = config.log.interval;
  if (config.log.console == "megatron") view.megatron = MegatronLine{config.batch.global, config.data.seq_len, flops_per_token(config.model, config.data.seq_len)};
  view.width = [] { return terminal_width(STDOUT_FILENO); };
  Console console(std::cout, view, [&](std::string_view line) { log.write(line); });
  const int cores = std::min(engine.machine().pool().threads(), usable_cores());
  const double peak = on_cpu ? core_gflops * 1e9 * cores : engine.machine().peak_flops();
  announce(config, engine, data, start, peak, console, metrics);
  if (!on_cpu) prepare_products(config, engine, start, console);
  return TrainLoop(config, options, resolved, engine, data, run_dir, console, metrics, start.state, peak).run();
}

}  // namespace octet
