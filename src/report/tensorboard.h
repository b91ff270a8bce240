// TensorBoard event files of a run, in RUN/tb. docs/reference/logging.md lists the tags.
//
// A file is named events.out.tfevents.<unix seconds>.<host>.<pid>.<n> and holds records
//   u64 length | u32 masked CRC-32C of those 8 bytes | payload | u32 masked CRC-32C of the payload          (little-endian)
// whose payloads are tensorflow.Event messages (tensorflow/core/util/event.proto, tensorflow/core/framework/summary.proto); the first
// says "brain.Event:2". The few message fields that a scalar and a text need are encoded here; no protobuf library is linked.
//
// Each start of a run makes a new file. When there are older ones it begins with SessionLog{START} at the first step that will be written,
// at which TensorBoard forgets what a killed run wrote from that step on. Readers stop at a torn last record, so a kill needs no repair.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/file_io.h"
#include "report/metrics.h"

namespace octet {

// The records of one event each, framed.
namespace event_record {
std::string version(double wall_time);
std::string session_start(double wall_time, int64_t step);
std::string scalar(double wall_time, int64_t step, std::string_view tag, float value);
// markdown: UTF-8, shown by the text plugin.
std::string text(double wall_time, int64_t step, std::string_view tag, std::string_view markdown);
}  // namespace event_record

// One event file. Records are collected and written by flush(); what is not flushed is lost with the process.
class EventFile {
 public:
  // Creates `directory` when absent and a file in it that sorts behind those that are there. Throws Error(checkpoint).
  EventFile(const std::filesystem::path& directory, int64_t first_step);
  ~EventFile();  // flushes as well as it can
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  const std::filesystem::path& path() const { return file_.path(); }
  void scalar(int64_t step, std::string_view tag, double value);
  void text(int64_t step, std::string_view tag, std::string_view markdown);
  // Throws Error(checkpoint) when the records cannot be written whole (full disk); what was written of them is taken back.
  void flush();

 private:
  File file_;
  std::string pending_;
};

struct TensorBoardOptions {
  bool megatron_names = false;
  int64_t global_batch = 0, seq_len = 0;   // samples a step, tokens a sample
  double flops_per_token = 0;              // model_causal (config/model_size.h), for Megatron's throughput
  int64_t finished_steps = 0, finished_samples = 0;  // where the run goes on; events behind them are forgotten
};

// FP8 health of one step, arrays over quantization sites. NaN: undefined there. roles: "x", "w" or "dy".
struct HealthArrays {
  std::span<const std::string> roles;
  std::span<const double> amax, underflow, saturation, sqnr_db, cosine;
  std::span<const int64_t> nonfinite;
};

class TensorBoard {
 public:
  // resolved_config: JSON text, shown as the text `config`. Throws Error(checkpoint).
  TensorBoard(const std::filesystem::path& run_dir, TensorBoardOptions options, const std::string& resolved_config);

  void train(const TrainRecord& record, std::optional<double> mfu, std::optional<double> z_loss = std::nullopt);
  // loss: of the first set; sets: name and loss of each named one.
  void valid(int64_t step, int64_t tokens, double loss, std::span<const std::pair<std::string, double>> sets = {});
  // fp8/<role>/...: the worst site of each role, non-finite elements summed. Same names in both modes.
  void health(int64_t step, const HealthArrays& arrays);
  void flush();

 private:
  void both(int64_t step, int64_t samples, const std::string& tag, double value);

  TensorBoardOptions options_;
  EventFile steps_;
  // Megatron's "... vs samples" twins count samples where others count steps. They have a file of their own (RUN/tb/vs_samples), or a
  // restart mark in steps would wipe them out, and one in samples would wipe out nothing.
  std::optional<EventFile> samples_;
};

}  // namespace octet
