// The training loop: batches in, metrics and checkpoints out.
#pragma once
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "core/trace.h"
#include "report/console.h"
#include "report/metrics.h"
#include "report/tensorboard.h"
#include "train/checkpointing.h"
#include "train/dump_file.h"
#include "train/engine.h"
#include "train/session.h"
#include "train/stop.h"
#include "train/train.h"
#include "train/watchdog.h"

namespace octet {

class TrainLoop {
 public:
  // peak_flops: what MFU is a share of, FLOP/s of this machine (train.cpp prints where it comes from).
  // In a job of several ranks (engine.mesh()) all of them run the loop together; the first one's console and metrics are those that are seen.
  TrainLoop(const RunConfig& config, const TrainOptions& options, const nlohmann::json& resolved, Engine& engine, DataSession& data, const std::filesystem::path& run_dir,
            Console& console, MetricsWriter& metrics, RunState state, double peak_flops);

  // Runs from state.step to the end or to a planned stop.
  ExitCode run();

 private:
  // What is waited for from now on, and how long at least (Watchdog::begin); the deadline of communication with it.
  void begin_phase(int64_t step, const char* phase, double minimum_s);
  // Why the run should stop early, the same on all ranks, behind every step: 20 to 90 microseconds of a job.
  std::optional<ExitCode> stop_reason(const StopRequests& stop) const;
  void one_step(data::StepLoader& loader);
  // data_seconds: of `seconds`, spent waiting for the batch.
  void record(const StepResult& result, const data::StepBatch& batch, double seconds, double data_seconds);
  void record_health(const std::vector<QuantRegistry::HealthEntry>& health);
  void note_skipped(const StepResult& result);
  void validate();
  nlohmann::json source_counters() const;
  void save();
  void finish(ExitCode code);
  // log.profile: spans from step profile_start up to profile_end, then RUN/trace.json.
  void start_trace(int64_t step);
  void end_trace();

  const RunConfig& config_;
  const TrainOptions& options_;
  const nlohmann::json& resolved_;
  Engine& engine_;
  DataSession& data_;
  std::filesystem::path run_dir_;
  Console& console_;
  MetricsWriter& metrics_;
  RunState state_;
  double peak_flops_, flops_per_token_;
  std::optional<DumpRequest> dump_request_;
  int64_t consecutive_skips_ = 0, saved_step_ = -1, validated_step_ = -1, first_step_ = 1;
  Watchdog watchdog_;
  std::optional<TensorBoard> tensorboard_;
  std::unique_ptr<Tracer> tracer_;  // while steps are traced
};

}  // namespace octet
