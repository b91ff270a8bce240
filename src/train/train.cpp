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

std::string banner(const RunConfig& c, const Engine& engine, const DataSession& data, const Model& model) {
  const Recipe& r = model.precision().base();
  const int64_t per_step = c.batch.global * c.data.seq_len;
  std::string text = fmt::format("octet {} | recipe {} | {} parameters | CPU, {} threads | gemm {}\n", version, r.name, human_count(static_cast<double>(parameter_count(c.model))),
                                 const_cast<Engine&>(engine).pool().threads(), c.run.cpu_gemm);
  text += fmt::format("data: {} ({} tokens, {} epochs of the training split) | {} steps of {} tokens ({} micro-batches of {} x {})\n", c.data.train.front().path, data.set().tokens(),
                      const_cast<DataSession&>(data).train().epochs(), c.run.steps, per_step, c.batch.global / c.batch.micro, c.batch.micro, c.data.seq_len);
  if (r.delayed()) text += fmt::format("delayed scaling: history of {} steps ({})\n", c.precision.amax_history_len.value_or(0), c.precision.amax_compute_algo);
  for (const std::string& note : r.notes) text += "warning: " + note + "\n";
  return text;
}

struct ResumePoint {
  std::optional<Checkpoint> checkpoint;
  std::vector<std::string> notes;
};

ResumePoint find_resume_point(const RunDir& dir) {
  ResumePoint r;
  if (dir.fresh()) return r;
  const auto path = latest_checkpoint(dir.checkpoints_dir(), r.notes);
  if (path) r.checkpoint = Checkpoint::open(*path);
  return r;
}

Checkpoint open_initial_weights(const std::string& where, std::vector<std::string>& notes) { return Checkpoint::open(resolve_checkpoint(where, notes)); }

ExitCode dry_run(const RunConfig& config) {
  const DataSession data(config, std::nullopt);
  Engine engine(config, Engine::Memory::plan_only);
  fmt::print("{}{}", banner(config, engine, data, engine.model()), memory_table(engine.memory()));
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

  // Everything from outside is read before the run directory is touched; only a resume needs the directory first.
  std::vector<std::string> notes;
  std::optional<Checkpoint> initial;
  if (!options.init_from.empty()) initial = open_initial_weights(options.init_from, notes);
  std::unique_ptr<DataSession> data;
  const Resume mode = resume_mode(config.ckpt.resume);
  if (mode == Resume::never) data = std::make_unique<DataSession>(config, std::nullopt);
  RunDir run_dir = RunDir::open(config.run.dir, mode);
  ResumePoint point = find_resume_point(run_dir);
  notes.insert(notes.end(), point.notes.begin(), point.notes.end());
  RunState state;
  if (point.checkpoint) {
    state = read_state(*point.checkpoint);
    for (const std::string& path : check_resumed_config(point.checkpoint->state().value("config", nlohmann::json::object()), resolved)) notes.push_back("resumed with another " + path);
    // The length of the amax history was derived from the first run's steps; a longer run keeps it.
    if (const int64_t length = saved_history_length(*point.checkpoint); length > 0) {
      config.precision.amax_history_len = length;
      resolved["precision"]["amax_history_len"] = length;
    }
  }
  if (!data) data = std::make_unique<DataSession>(config, point.checkpoint ? std::optional(state.sampler) : std::nullopt);
  state.data_path = config.data.train.front().path;
  state.sampler = data->train().pin();

  Engine engine(config);
  if (point.checkpoint) {
    for (std::string& note : restore_run(*point.checkpoint, engine)) notes.push_back(std::move(note));
  } else if (initial) {
    load_weights(*initial, engine);
  }
  if (options.strict && !notes.empty()) throw Error(ExitCode::config, notes.front(), "--strict", "repair what the message names, or leave out --strict");

  write_file_atomic(run_dir.path() / "config.resolved.json", resolved.dump(2) + "\n");
  LogFile log(run_dir.path() / "log.txt");
  MetricsWriter metrics(run_dir.path());
  ConsoleOptions view;
  view.total_steps = config.run.steps;
  view.log_interval = config.log.interval;
  view.width = [] { return terminal_width(STDOUT_FILENO); };
  Console console(std::cout, view, [&](std::string_view line) { log.write(line); });
  console.message(banner(config, engine, *data, engine.model()) + memory_table(engine.memory()));
  const double peak = core_gflops * 1e9 * engine.pool().threads();
  console.message(fmt::format("MFU: model_causal FLOPs against {:.0f} GFLOP/s (one core's sgemm, measured now, times {} threads)", peak * 1e-9, engine.pool().threads()));
  for (const std::string& note : notes) {
    console.message("warning: " + note);
    metrics.event("warning", {{"text", note}});
  }
  metrics.event("start", {{"code_version", version},
                          {"step", state.step},
                          {"resumed_from", point.checkpoint ? point.checkpoint->path().string() : ""},
                          {"recipe", engine.model().precision().base().name},
                          {"parameters", engine.model().parameter_count()},
                          {"threads", engine.pool().threads()},
                          {"memory_bytes", engine.memory().total()}});
  if (point.checkpoint) console.message(fmt::format("resumed from {} at step {}", point.checkpoint->path().string(), state.step));
  if (state.step >= config.run.steps) {
    console.message(fmt::format("nothing to do: the run has {} steps and is at step {}", config.run.steps, state.step));
    return ExitCode::ok;
  }
  return TrainLoop(config, options, resolved, engine, *data, run_dir, console, metrics, state, peak).run();
}

}  // namespace octet
