// The order of a run: check everything that can be checked, then lock the run directory, then speak, then train.
#include "train/train.h"

#include <fmt/format.h>
#include <unistd.h>

#include <iostream>

#include "config/config_io.h"
#include "config/model_size.h"
#include "core/version.h"
#include "cpu/cpu_ops.h"
#include "report/table.h"
#include "train/loop.h"

namespace octet {
namespace {

std::string memory_table(const MemoryPlan& m) {
  Table t({{"memory", Table::Align::left}, {"size"}});
  t.add_row({"master weights (FP32)", human_bytes(m.master)});
  t.add_row({"Adam moments (FP32)", human_bytes(m.moments)});
  t.add_row({"gradients (FP32)", human_bytes(m.gradients)});
  t.add_row({"working weights (BF16)", human_bytes(m.working)});
  t.add_row({"quantized weight images", human_bytes(m.images)});
  t.add_row({"activations of a micro-batch", human_bytes(m.activations)});
  t.add_row({"scratch", human_bytes(m.scratch)});
  t.add_row({"total", human_bytes(m.total())});
  return t.text();
}

std::string banner(const RunConfig& c, Engine& engine, DataSession& data) {
  const Recipe& r = engine.model().precision().base();
  const int64_t per_step = c.batch.global * c.data.seq_len;
  std::string text = fmt::format("octet {} | recipe {} | {} parameters | CPU, {} threads | gemm {}\n", version, r.name, human_count(static_cast<double>(parameter_count(c.model))),
                                 engine.pool().threads(), c.run.cpu_gemm);
  text += fmt::format("data: {} ({} tokens, {} epochs of the training split) | {} steps of {} tokens ({} micro-batches of {} x {})\n", c.data.train.front().path, data.set().tokens(),
                      data.train().epochs(), c.run.steps, per_step, c.batch.global / c.batch.micro, c.batch.micro, c.data.seq_len);
  if (r.delayed()) text += fmt::format("delayed scaling: history of {} steps ({})\n", c.precision.amax_history_len.value_or(0), c.precision.amax_compute_algo);
  for (const std::string& note : r.notes) text += "warning: " + note + "\n";
  return text;
}

// What the run starts from, read before the run directory is touched.
struct StartingPoint {
  std::optional<Checkpoint> checkpoint;   // to go on from
  std::optional<Checkpoint> initial;      // to take weights from
  RunState state;
  std::vector<std::string> notes;
};

// Reads the newest checkpoint and adapts config and resolved to it.
void read_checkpoint(const std::filesystem::path& checkpoints, StartingPoint& start, RunConfig& config, nlohmann::json& resolved) {
  const auto path = latest_checkpoint(checkpoints, start.notes);
  if (!path) return;
  start.checkpoint = Checkpoint::open(*path);
  start.state = read_state(*start.checkpoint);
  for (const std::string& changed : check_resumed_config(start.checkpoint->state().value("config", nlohmann::json::object()), resolved)) {
    start.notes.push_back("resumed with another " + changed);
  }
  // The length of the amax history was derived from the first run's steps; a longer run keeps it.
  if (const int64_t length = saved_history_length(*start.checkpoint); length > 0) {
    config.precision.amax_history_len = length;
    resolved["precision"]["amax_history_len"] = length;
  }
}

void announce(const RunConfig& config, Engine& engine, DataSession& data, const StartingPoint& start, double peak, Console& console, MetricsWriter& metrics) {
  console.message(banner(config, engine, data) + memory_table(engine.memory()));
  console.message(fmt::format("MFU: model_causal FLOPs against {:.0f} GFLOP/s (one core's sgemm, measured now, times {} threads)", peak * 1e-9, engine.pool().threads()));
  for (const std::string& note : start.notes) {
    console.message("warning: " + note);
    metrics.event("warning", {{"text", note}});
  }
  const std::string from = start.checkpoint ? start.checkpoint->path().string() : "";
  metrics.event("start", {{"code_version", version},
                          {"step", start.state.step},
                          {"resumed_from", from},
                          {"weights_from", start.initial ? start.initial->path().string() : ""},
                          {"recipe", engine.model().precision().base().name},
                          {"parameters", engine.model().parameter_count()},
                          {"threads", engine.pool().threads()},
                          {"memory_bytes", engine.memory().total()}});
  if (start.checkpoint) console.message(fmt::format("resumed from {} at step {}", from, start.state.step));
  if (start.initial) console.message(fmt::format("weights taken from {}", start.initial->path().string()));
}

ExitCode dry_run(const RunConfig& config) {
  DataSession data(config, std::nullopt);
  Engine engine(config, Engine::Memory::plan_only);
  fmt::print("{}{}", banner(config, engine, data), memory_table(engine.memory()));
  fmt::print("FLOPs a token (model_causal): {}\n", human_count(flops_per_token(config.model, config.data.seq_len)));
  return ExitCode::ok;
}

}  // namespace

ExitCode train(const RunConfig& requested, const TrainOptions& options, const nlohmann::json& resolved_request) {
  RunConfig config = requested;
  nlohmann::json resolved = resolved_request;
  parse_dump_request(options.dump);
  const double core_gflops = cpu::blas_self_test();
  if (options.dry_run) return dry_run(config);

  // A refusal must leave nothing behind: everything that can be wrong is found before the run directory is made and locked.
  StartingPoint start;
  const Resume mode = resume_mode(config.ckpt.resume);
  const auto checkpoints = std::filesystem::path(config.run.dir) / "checkpoints";
  if (mode != Resume::never && has_checkpoints(checkpoints)) read_checkpoint(checkpoints, start, config, resolved);
  if (!options.init_from.empty()) {
    if (start.checkpoint) {
      start.notes.push_back("--init-from is not used: the run goes on from its own checkpoint");
    } else {
      start.initial = Checkpoint::open(resolve_checkpoint(options.init_from, start.notes));
    }
  }
  DataSession data(config, start.checkpoint ? std::optional(start.state.sampler) : std::nullopt);
  start.state.data_path = config.data.train.front().path;
  start.state.sampler = data.train().pin();
  Engine engine(config);
  if (start.checkpoint) {
    for (std::string& note : restore_run(*start.checkpoint, engine)) start.notes.push_back(std::move(note));
  } else if (start.initial) {
    load_weights(*start.initial, engine);
  }
  if (options.strict && !start.notes.empty()) throw Error(ExitCode::config, start.notes.front(), "--strict", "repair what the message names, or leave out --strict");

  RunDir run_dir = RunDir::open(config.run.dir, mode);
  std::vector<std::string> again;
  const auto newest = run_dir.fresh() ? std::nullopt : latest_checkpoint(run_dir.checkpoints_dir(), again, Verify::structure);
  if (newest.has_value() != start.checkpoint.has_value() || (newest && *newest != start.checkpoint->path())) {
    throw Error(ExitCode::config, "another process wrote a checkpoint while this one was starting", config.run.dir, "start it again");
  }
  write_file_atomic(run_dir.path() / "config.resolved.json", resolved.dump(2) + "\n");
  LogFile log(run_dir.path() / "log.txt");
  MetricsWriter metrics(run_dir.path());
  ConsoleOptions view;
  view.total_steps = config.run.steps;
  view.log_interval = config.log.interval;
  view.width = [] { return terminal_width(STDOUT_FILENO); };
  Console console(std::cout, view, [&](std::string_view line) { log.write(line); });
  const double peak = core_gflops * 1e9 * engine.pool().threads();
  announce(config, engine, data, start, peak, console, metrics);
  if (start.state.step >= config.run.steps) {
    console.message(fmt::format("nothing to do: the run has {} steps and is at step {}", config.run.steps, start.state.step));
    return ExitCode::ok;
  }
  return TrainLoop(config, options, resolved, engine, data, run_dir, console, metrics, start.state, peak).run();
}

}  // namespace octet
