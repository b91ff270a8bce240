// Reads what a run left behind: a run directory (metrics.jsonl and, when present, config.resolved.json), a folder of TensorBoard
// event files (tensorboard_reader.h) or a CSV.
// Files come from outside: every line is checked, and a bad one is refused with its file and line.
#pragma once
#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "report/health.h"

namespace octet::report {

// NaN stands for a value that is absent or was not finite.
inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

struct TrainPoint {
  int64_t step = 0, tokens = 0;
  double loss = 0, grad_norm = 0, lr = 0, tokens_per_s = 0, step_ms = 0;
  bool non_finite = false;  // a number of the step (speeds aside) was NaN or infinite, or an event "nonfinite" names it
  bool skipped = false;     // the optimizer update was skipped
};

struct ValidPoint {
  int64_t step = 0, tokens = 0;
  double loss = 0;
};

struct RunEvent {
  int64_t step = -1;  // -1: none
  std::string name, detail;
};

struct RunMetrics {
  std::filesystem::path source;              // as given
  std::vector<std::filesystem::path> files;  // what was read
  std::string name;                          // directory name, or the CSV's without its extension
  std::string recipe;                        // precision.recipe of the resolved config; the name when there is none
  std::optional<uint64_t> seed;              // run.seed
  std::optional<int64_t> tokens_per_step;    // batch.global * data.seq_len
  nlohmann::json config;                     // resolved config; null when there is none
  std::string data;                          // JSON text of the training sources' sizes, from the last event "start"; empty when it has none
  std::vector<TrainPoint> train;             // steps and tokens strictly increase
  std::vector<ValidPoint> valid;
  bool non_finite_after_end = false;         // an event "nonfinite" names a step after the last train line
  std::map<std::string, double> quantized;  // "role.format" or "role/format" -> elements, from the last event "summary"
  int64_t resumes = 0;                      // times the step counter went back
  std::vector<RunEvent> events;             // what happened beside plain steps, in file order: the first kMaxEvents
  int64_t further_events = 0;               // events beyond those
  Health health;                            // empty without statistics
  std::vector<std::string> notes;           // what the reader passed over

  static constexpr size_t kMaxEvents = 1000;

  int64_t skipped_steps() const;
  int64_t non_finite_steps() const;
};

// Where the step counter goes back (a resume), the steps of the earlier life from there on are dropped: the later line counts.
// A torn last line of metrics.jsonl (no newline, not JSON) is passed over with a note.
// A CSV has a header row; the columns step, tokens, loss must be there, grad_norm, lr, tokens_per_s, step_ms may be.
// Whole numbers of a CSV may be written as 10, 10.0 or 1e1.
// A directory without metrics.jsonl but with files named *tfevents* is a TensorBoard folder.
// Throws Error(config) for any other directory without metrics.jsonl, Error(data) for anything else that cannot be used.
RunMetrics read_run(const std::filesystem::path& path);

// {"a": {"b": 1}} -> {"a.b": "1"}; arrays and values as JSON text. At most 64 levels.
std::map<std::string, std::string> flatten_config(const nlohmann::json& config);

}  // namespace octet::report
