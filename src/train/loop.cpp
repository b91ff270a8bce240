#include "train/loop.h"

#include <fmt/format.h>

#include <chrono>
#include <limits>

#include "config/model_size.h"
#include "core/file_io.h"
#include "report/table.h"
#include "train/health_lines.h"

namespace octet {
namespace {

// Phases without a known duration: the first step (pages and caches are cold), validation, saving.
constexpr double long_phase_s = 600;
// Of several ranks, behind the deadline of their communication, whose message says more.
constexpr double grace_s = 5;
constexpr double shadowed_phase_s = 86400;   // the CPU computes it too

// Of a run with a shadow, at its end.
std::string shadow_table(const Shadow& shadow) {
  Table t({{"compared with the CPU", Table::Align::left}, {"calls"}, {"largest difference, of what is allowed"}});
  for (const auto& [op, total] : shadow.totals()) t.add_row({op, std::to_string(total.calls), total.worst > 0 ? fmt::format("{:.2g}", total.worst) : std::string("none")});
  return t.text();
}

// What the first rank sent in this process, by group, operation and type.
nlohmann::json traffic_json(const Mesh& mesh) {
  nlohmann::json all = nlohmann::json::object();
  for (const auto& [group, table] : mesh.traffic()) {
    for (const auto& [what, sent] : table) all[group][fmt::format("{}/{}", what.first, name(what.second))] = {{"calls", sent.calls}, {"bytes", sent.bytes}};
  }
  return all;
}

double seconds_since(std::chrono::steady_clock::time_point begin) { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(); }

}  // namespace

TrainLoop::TrainLoop(const RunConfig& config, const TrainOptions& options, const nlohmann::json& resolved, Engine& engine, DataSession& data,
                     const std::filesystem::path& run_dir, Console& console, MetricsWriter& metrics, RunState state, double peak_flops)
    : config_(config),
      options_(options),
      resolved_(resolved),
      engine_(engine),
      data_(data),
      run_dir_(run_dir),
      console_(console),
      metrics_(metrics),
      state_(std::move(state)),
      peak_flops_(peak_flops),
      flops_per_token_(flops_per_token(config.model, config.data.seq_len)),
      dump_request_(parse_dump_request(options.dump)),
      watchdog_(config.guard.deadline_s, engine.mesh().alone() ? 0 : grace_s) {
  if (state_.step > 0) saved_step_ = state_.step;
  first_step_ = state_.step + 1;
  if (config.log.tensorboard && engine.mesh().first()) {
    TensorBoardOptions tb;
    tb.megatron_names = config.log.names == "megatron";
    tb.global_batch = config.batch.global;
    tb.seq_len = config.data.seq_len;
    tb.flops_per_token = flops_per_token_;
    tb.finished_steps = state_.step;
    tb.finished_samples = state_.samples;
    tensorboard_.emplace(run_dir, tb, resolved.dump(2));
  }
}

ExitCode TrainLoop::run() {
  StopRequests stop(options_.exit_after_minutes);
  const Layout& layout = engine_.mesh().layout();
  const auto loader = data_.loader(state_.samples, {}, layout.dp_rank(), layout.dp());
  ExitCode code = ExitCode::ok;
  while (state_.step < config_.run.steps) {
    start_trace(state_.step + 1);
    one_step(*loader);
    if (config_.eval.interval > 0 && state_.step % config_.eval.interval == 0) validate();
    if (config_.ckpt.interval > 0 && state_.step % config_.ckpt.interval == 0) save();
    if (state_.step + 1 >= config_.log.profile_end) end_trace();
    if (const auto reason = stop_reason(stop); reason && state_.step < config_.run.steps) {
      code = *reason;
      break;
    }
  }
  if (code == ExitCode::ok && config_.eval.interval > 0) validate();
  save();
  end_trace();
  finish(code);
  return code;
}

void TrainLoop::begin_phase(int64_t step, const char* phase, double minimum_s) {
  watchdog_.begin(step, phase, minimum_s);
  engine_.mesh().set_deadline(watchdog_.deadline_s());
}

// A signal reaches the ranks at different moments, or some of them only.
std::optional<ExitCode> TrainLoop::stop_reason(const StopRequests& stop) const {
  const std::optional<ExitCode> own = stop.pending();
  if (!engine_.mesh().all()) return own;
  const int64_t code = max_of(*engine_.mesh().all(), own ? static_cast<int64_t>(*own) : 0);
  return code ? std::optional(static_cast<ExitCode>(code)) : std::nullopt;
}

void TrainLoop::one_step(data::StepLoader& loader) {
  const int64_t number = state_.step + 1;
  Span span(tracer_.get(), "step", tracer_ ? std::to_string(number) : std::string());
  const auto begin = std::chrono::steady_clock::now();
  const double patience = engine_.shadow() ? shadowed_phase_s : number == first_step_ ? long_phase_s : 0;
  begin_phase(number, "reading the batch", patience);
  const data::StepBatch& batch = [&]() -> const data::StepBatch& {
    Span read(tracer_.get(), "read batch", "");
    return loader.next();
  }();
  const double data_seconds = seconds_since(begin);
  std::unique_ptr<Dump> dump;
  if (dump_request_ && dump_request_->step == number) dump = std::make_unique<Dump>(dump_request_->modules, engine_.machine());
  begin_phase(number, "the training step", patience);
  const StepResult result = engine_.step(batch, state_.step, dump.get());
  watchdog_.idle();
  const double seconds = seconds_since(begin);
  watchdog_.step_took(seconds);
  state_.step = number;
  state_.samples += config_.batch.global;
  state_.tokens += config_.batch.global * config_.data.seq_len;
  for (size_t k = 0; k < state_.sources.size(); ++k) {
    state_.sources[k].samples += batch.source_samples[k];
    state_.sources[k].tokens += batch.source_samples[k] * config_.data.seq_len;
  }
  record(result, batch, seconds, data_seconds);
  if (engine_.shadow()) console_.message(engine_.shadow()->summary());
  if (dump) {
    Span write(tracer_.get(), "write dump", "");
    const auto path = write_dump(run_dir_, *dump, number, static_cast<int64_t>(batch.micro.size()), engine_.model().precision().base().name,
                                 engine_.machine().kind() == DeviceKind::cpu ? config_.run.cpu_gemm : "cublaslt", config_.model.tie_word_embeddings);
    console_.message(fmt::format("dump of step {} written to {}", number, path.string()));
    metrics_.event("dump", {{"step", number}, {"path", path.string()}});
  }
  if (result.skipped) {
    note_skipped(result);
  } else {
    consecutive_skips_ = 0;
  }
}

void TrainLoop::record(const StepResult& r, const data::StepBatch& batch, double seconds, double data_seconds) {
  Span span(tracer_.get(), "log", "");
  const auto tokens = static_cast<double>(config_.batch.global * config_.data.seq_len);
  TrainRecord record;
  record.step = state_.step;
  record.tokens = state_.tokens;
  record.loss = r.loss;
  record.grad_norm = r.grad_norm;
  record.lr = r.lr;
  record.tokens_per_s = tokens / seconds;
  record.step_ms = seconds * 1e3;
  record.skipped = r.skipped;
  std::optional<double> mfu;   // unknown on a GPU whose peak is
  if (peak_flops_ > 0) mfu = flops_per_token_ * record.tokens_per_s / peak_flops_;
  nlohmann::json extra = {{"valid_tokens", r.valid_tokens}, {"data_ms", data_seconds * 1e3}, {"sample_hash", fmt::format("{:016x}", data::sample_hash(batch))}};
  if (mfu) extra["mfu_causal"] = *mfu;
  if (config_.optim.z_loss > 0) extra["z_loss"] = r.z_loss;
  if (r.skipped) extra["skipped"] = true;
  metrics_.train(record, extra);
  if (!r.health.empty()) record_health(r.health);
  console_.step(record, mfu);
  if (!tensorboard_) return;
  tensorboard_->train(record, mfu, config_.optim.z_loss > 0 ? std::optional(r.z_loss) : std::nullopt);
  if (state_.step % config_.log.interval == 0) tensorboard_->flush();
}

void TrainLoop::record_health(const std::vector<QuantRegistry::HealthEntry>& health) {
  metrics_.stats(state_.step, health_values(health));
  if (!tensorboard_) return;
  constexpr double undefined = std::numeric_limits<double>::quiet_NaN();
  std::vector<std::string> roles;
  std::vector<double> amax, underflow, saturation, sqnr, cosine;
  std::vector<int64_t> nonfinite;
  for (const auto& e : health) {
    roles.emplace_back(name(e.role));
    amax.push_back(e.values.amax);
    underflow.push_back(e.values.underflow_share());
    saturation.push_back(e.values.saturated_share());
    sqnr.push_back(e.values.sqnr_db().value_or(undefined));
    cosine.push_back(e.values.cosine().value_or(undefined));
    nonfinite.push_back(e.values.nonfinite);
  }
  tensorboard_->health(state_.step, {roles, amax, underflow, saturation, sqnr, cosine, nonfinite});
}

void TrainLoop::note_skipped(const StepResult& r) {
  ++state_.skipped_steps;
  ++consecutive_skips_;
  state_.nonfinite_elements += r.nonfinite;
  const std::string text = fmt::format("step {}: non-finite values ({}first in {}); the update is skipped", state_.step,
                                       r.nonfinite ? fmt::format("{} elements, ", r.nonfinite) : std::string(), r.offender);
  console_.message("warning: " + text);
  metrics_.event("nonfinite", {{"step", state_.step}, {"tensor", r.offender}, {"elements", r.nonfinite}, {"consecutive", consecutive_skips_}});
  const bool given_up = consecutive_skips_ >= config_.guard.max_skipped;
  if (!options_.strict && !given_up) return;
  end_trace();
  console_.finish();
  Error error(ExitCode::non_finite, text + (given_up ? fmt::format(" ({} steps in a row)", consecutive_skips_) : ""), run_dir_.string(),
              given_up ? "lower the learning rate, or give the named module a wider recipe with precision.rules; the last checkpoint is from before" : "--strict makes this an error");
  error.shared = true;   // of a job: all ranks see the same step
  throw error;
}

void TrainLoop::validate() {
  if (validated_step_ == state_.step) return;
  validated_step_ = state_.step;
  Span span(tracer_.get(), "validation", "");
  const double patience = engine_.shadow() ? shadowed_phase_s : long_phase_s;
  nlohmann::json extra = nlohmann::json::object();
  std::vector<std::pair<std::string, double>> losses;   // the first set is the one comparisons use
  for (const ValidationSet& set : data_.validation()) {
    begin_phase(state_.step, "validation", patience);
    losses.emplace_back(set.name, engine_.evaluate(set.batches));
    if (engine_.shadow()) console_.message(engine_.shadow()->summary());
    if (!config_.data.valid.empty()) extra["sets"][set.name] = losses.back().second;
  }
  watchdog_.idle();
  metrics_.valid(state_.step, state_.tokens, losses.front().second, extra);
  const bool named = !config_.data.valid.empty();
  for (const auto& [set, loss] : losses) console_.valid(state_.step, loss, named ? set : std::string());
  if (tensorboard_) tensorboard_->valid(state_.step, state_.tokens, losses.front().second, named ? std::span(losses) : std::span<const std::pair<std::string, double>>());
}

void TrainLoop::save() {
  if (saved_step_ == state_.step) return;
  // What a checkpoint covers is never written again by a resumed run.
  if (tensorboard_) tensorboard_->flush();
  Span span(tracer_.get(), "save checkpoint", "");
  const auto begin = std::chrono::steady_clock::now();
  begin_phase(state_.step, "saving a checkpoint", long_phase_s);
  const auto path = save_run(run_dir_ / "checkpoints", config_.ckpt.keep_last, engine_, state_, resolved_);
  watchdog_.idle();
  saved_step_ = state_.step;
  metrics_.event("checkpoint", {{"step", state_.step}, {"path", path.string()}, {"seconds", seconds_since(begin)}, {"sources", source_counters()}});
}

nlohmann::json TrainLoop::source_counters() const {
  nlohmann::json list = nlohmann::json::array();
  for (size_t k = 0; k < state_.sources.size(); ++k) {
    const SourceState& s = state_.sources[k];
    const double epochs = static_cast<double>(s.tokens) / static_cast<double>(data_.train(k).tokens_per_epoch());
    list.push_back({{"path", s.path}, {"samples", s.samples}, {"tokens", s.tokens}, {"epochs", epochs}});
  }
  return list;
}

void TrainLoop::start_trace(int64_t step) {
  if (!config_.log.profile || tracer_ || !engine_.mesh().first() || step < config_.log.profile_start || step >= config_.log.profile_end) return;
  TraceHooks hooks = options_.trace_hooks;
  if (engine_.machine().kind() == DeviceKind::cuda) hooks.settle = [this] { engine_.machine().synchronize(); };
  tracer_ = std::make_unique<Tracer>(hooks);
  engine_.set_tracer(tracer_.get());
}

void TrainLoop::end_trace() {
  if (!tracer_) return;
  engine_.set_tracer(nullptr);
  const auto path = run_dir_ / "trace.json";
  write_file_atomic(path, tracer_->json(), ExitCode::checkpoint);
  console_.message(fmt::format("trace of {} spans written to {}", tracer_->spans(), path.string()));
  if (tracer_->left_out() > 0) console_.message(fmt::format("warning: the trace is full, {} spans are left out; profile fewer steps", tracer_->left_out()));
  metrics_.event("trace", {{"step", state_.step}, {"path", path.string()}, {"spans", tracer_->spans()}, {"left_out", tracer_->left_out()}});
  tracer_.reset();
}

void TrainLoop::finish(ExitCode code) {
  if (tensorboard_) tensorboard_->flush();
  nlohmann::json quantized = nlohmann::json::object();
  std::string listing;
  for (const auto& t : engine_.quant().totals()) {
    const std::string key = fmt::format("{}/{}", name(t.role), name(t.format));
    quantized[key] = t.elements;
    listing += fmt::format("{}{} {}", listing.empty() ? "" : ", ", key, t.elements);
  }
  metrics_.event("summary", {{"step", state_.step},
                             {"tokens", state_.tokens},
                             {"quantized", quantized},
                             {"sources", source_counters()},
                             {"skipped_steps", state_.skipped_steps},
                             {"nonfinite_elements", state_.nonfinite_elements},
                             {"traffic", traffic_json(engine_.mesh())},
                             {"exit_code", static_cast<int>(code)}});
  console_.finish();
  if (engine_.shadow()) console_.message(shadow_table(*engine_.shadow()));
  const char* why = code == ExitCode::stopped ? "saved and stopped by a signal" : code == ExitCode::time_limit ? "time limit reached, saved" : "finished";
  console_.message(fmt::format("{} at step {} of {}, {} tokens; skipped steps: {}; elements quantized: {}", why, state_.step, config_.run.steps, state_.tokens, state_.skipped_steps,
                               listing.empty() ? "none" : listing));
}

}  // namespace octet
