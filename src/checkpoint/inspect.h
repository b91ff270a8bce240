// Looking at checkpoints without a run: what is there, whether it is sound, and how two differ (octet ckpt ls|verify|diff).
// Errors: Error(ExitCode::checkpoint). Damage of a listed checkpoint is a finding, not an error.
#pragma once
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/store.h"

namespace octet {

struct CheckpointSummary {
  std::filesystem::path path;
  std::string name;           // of the directory
  bool latest = false;        // LATEST names it
  std::string fault;          // why it cannot be used; empty: complete (manifest, file sizes and headers agree)
  int64_t step = 0;           // from here on: of a complete one
  uint64_t bytes = 0;         // of its tensor files
  size_t tensors = 0;
  std::map<std::string, size_t> types;  // dtype name -> tensors
};

// d: a checkpoint, a directory of checkpoints or a run directory. Oldest step first; unfinished saves (*.tmp.<pid>) last. Reads no tensor bytes.
std::vector<CheckpointSummary> list_checkpoints(const std::filesystem::path& d);

// Reads every byte of one checkpoint and returns what is wrong, one line a fault; empty: sound.
// What is wrong with the LATEST file of a directory of checkpoints or a run directory; empty when all is well, or there is no such directory.
std::string latest_fault(const std::filesystem::path& d);

std::vector<std::string> checkpoint_faults(const std::filesystem::path& checkpoint);

struct TensorDifference {
  std::string group, name;
  std::string what;           // "only in the first", "f32 [2, 3] and f32 [3, 2]"; empty: the values below differ
  int64_t elements = 0;
  int64_t differing = 0;      // elements whose bits differ
  int64_t nonfinite = 0;      // of those, NaN or infinite in either
  double max_abs = 0;         // |a - b| over finite elements
  double max_rel = 0;         // |a - b| / max(|a|, |b|)
};

struct StateDifference {
  std::string pointer;        // JSON pointer in the state
  nlohmann::json first, second;  // null: absent
};

struct CheckpointDiff {
  size_t tensors = 0;         // in either
  std::vector<TensorDifference> different;
  std::vector<StateDifference> state;   // without "config", which config/resume_diff.h compares
};

// Reads both whole, one tensor at a time; a wrong checksum is an Error.
CheckpointDiff diff_checkpoints(const Checkpoint& a, const Checkpoint& b);

}  // namespace octet
