// MetricsWriter: appends a run's metrics to RUN/metrics.jsonl, one JSON object a line, each line one write(2) to a file
// opened for appending, so a reader that follows the file sees whole lines and a killed run loses at most the last one.
//
//   {"kind":"train","step","tokens","loss","grad_norm","lr","tokens_per_s","step_ms", ...}   every optimizer step
//   {"kind":"valid","step","tokens","loss", ...}                                              every validation
//   {"kind":"stats","step", ...}                                                              FP8 health, at log.stats_interval
//   {"kind":"event","event":NAME, ...}                                                        anything else worth counting
//
// step counts finished optimizer steps from 1, tokens is cumulative over the run. After a resume a step may appear again; the later line
// counts. Numbers round-trip as doubles. NaN and infinity are not JSON: they become null, and "nonfinite" lists their keys.
#pragma once
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

namespace octet {

struct TrainRecord {
  int64_t step = 0, tokens = 0;
  double loss = 0, grad_norm = 0, lr = 0;  // grad_norm before clipping
  double tokens_per_s = 0, step_ms = 0;
  bool skipped = false;  // the update was; for the console, MetricsWriter leaves it to `extra`
};

class MetricsWriter {
 public:
  // Opens or creates RUN/metrics.jsonl. An unfinished last line of a killed run is removed (completed when only its newline is
  // missing) and recorded as the event "metrics_repaired". Throws Error(checkpoint) when the file cannot be opened or written.
  explicit MetricsWriter(const std::filesystem::path& run_dir);
  // Writes nothing: for ranks of a job whose first one writes.
  MetricsWriter() = default;
  ~MetricsWriter();
  MetricsWriter(const MetricsWriter&) = delete;
  MetricsWriter& operator=(const MetricsWriter&) = delete;

  // `extra` is an object whose keys are added to the line; the names above cannot be replaced by it.
  // Throws Error(checkpoint) when the line cannot be written whole (full disk); what was written of it is taken back.
  void train(const TrainRecord& record, const nlohmann::json& extra = {});
  void valid(int64_t step, int64_t tokens, double loss, const nlohmann::json& extra = {});
  void stats(int64_t step, const nlohmann::json& values);
  void event(const std::string& name, const nlohmann::json& fields = {});

 private:
  void repair();
  void append(nlohmann::json line, const nlohmann::json& extra);
  void write_whole(const std::string& text);
  [[noreturn]] void fail(const char* doing) const;

  std::filesystem::path path_;
  int fd_ = -1;
};

}  // namespace octet
