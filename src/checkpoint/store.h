// Checkpoint store: checksummed, layout-free, crash-safe. docs/reference/checkpoint_format.md defines the files.
//
//   CHECKPOINTS/LATEST                     name of the newest committed checkpoint
//   CHECKPOINTS/step_0000000123/           manifest.json and *.safetensors
//   CHECKPOINTS/step_0000000123.replaced/  an older save of the same step while it is being replaced
//   CHECKPOINTS/*.tmp.<pid>                being written or being deleted; removed by the next save when <pid> is dead
//
// One process, or all ranks of one job together, write to a directory at a time (train/ holds the run directory's lock); any number may read.
// Errors: Error(ExitCode::checkpoint) unless said otherwise.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/manifest.h"
#include "checkpoint/safetensors.h"
#include "core/dtype.h"
#include "core/shape.h"

namespace octet {

// A tensor, or a box of one. Groups: "model" (F32 masters under Hugging Face names), "optimizer" (exp_avg/<name>, exp_avg_sq/<name>),
// "state" (small tensors, e.g. amax histories); others are allowed ([a-z0-9_]+).
struct TensorToSave {
  std::string group, name;
  Dtype dtype = Dtype::f32;
  Shape shape;  // of data
  const void* data = nullptr;
  std::optional<Shape> global_shape{};  // absent: data is the whole tensor
  Shape offset{};                       // of data in the global tensor; used with global_shape only
  FetchBytes fetch{};                   // instead of data
};

inline constexpr const char* latest_file = "LATEST";

// Points of the commit protocol, in the order they are passed; shard_written once a shard, victim_renamed once a deletion.
enum class SavePhase { temporary_made, shard_written, manifest_written, previous_moved, committed, latest_written, victim_renamed, done };

struct SaveOptions {
  int64_t step = 0;
  int64_t keep_last = 0;                         // 0 keeps all
  uint64_t max_shard_bytes = uint64_t{2} << 30;  // a larger single tensor gets a shard of its own
  std::function<void(SavePhase)> after_phase{};  // called after each point; for tests and progress
};

// The ranks that save together. The store knows no communication: `exchange` is the job's.
struct SaveGroup {
  int rank = 0, size = 1;
  // Returns every rank's text, by rank. Called by all ranks equally often, also after an error of one; what it throws (a lost rank) ends the save.
  // May be empty for one rank.
  std::function<std::vector<std::string>(const std::string& mine)> exchange{};
  std::string host{};  // of this rank, for messages
};

// Error(checkpoint), on all ranks, unless `directory` is one place for all of them; it need not be there yet: then it is what will hold it that is looked at. Rank 0
// makes a directory there for a moment; where it can not, this returns, for whoever writes there to say why.
void check_shared_directory(const std::filesystem::path& directory, const SaveGroup& group);

// Writes CHECKPOINTS/step_<N> (making CHECKPOINTS when absent) and returns its path. The space needed is checked first; a failure before
// the commit removes the temporary directory and leaves all earlier checkpoints and LATEST as they were. An existing step_<N> is
// replaced; at no moment is there neither the old nor the new one. After the commit, LATEST is moved, then checkpoints beyond the
// keep_last newest of steps <= N are deleted (later steps, left by a run that was taken back, are not counted and not touched).
// state: any JSON without non-finite numbers. Misuse (duplicate names, bad groups, null data) is Error(internal).
//
// By a group: every rank calls it, with its own boxes (or none) and the same step, and writes files of its own; what the boxes of all ranks make must
// tile each tensor. `state` and `keep_last` count from rank 0, which does everything but the shards; the other ranks' after_phase sees their
// shard_written only. CHECKPOINTS must be one directory for all ranks: Error(checkpoint) names a rank and host that does not see it.
// All ranks return (each its CHECKPOINTS/step_<N>) or all throw the same Error, which names the rank it befell and is marked as shared.
std::filesystem::path save_checkpoint(const std::filesystem::path& checkpoints_dir, const SaveOptions& options,
                                      const std::vector<TensorToSave>& tensors, const nlohmann::json& state, const SaveGroup& group = {});

struct NamedTensor {
  std::string group, name;
  Dtype dtype = Dtype::f32;
  Shape shape;  // global
};

struct ExpectedTensor {
  std::string name;
  Dtype dtype = Dtype::f32;
  Shape shape;
};

// A complete checkpoint, opened for reading.
class Checkpoint {
 public:
  // Checks the manifest, and presence, size and header of every shard; tensor bytes are checked when read.
  static Checkpoint open(const std::filesystem::path& directory);

  const std::filesystem::path& path() const { return path_; }
  int64_t step() const { return manifest_.step; }
  const nlohmann::json& state() const { return manifest_.state; }
  const Manifest& manifest() const { return manifest_; }

  bool has(std::string_view group, std::string_view name) const;
  std::vector<NamedTensor> list() const;  // by group, then name

  // Assembles the whole tensor into out and verifies its checksums. dtype and shape must be the stored ones.
  void read(std::string_view group, std::string_view name, Dtype dtype, const Shape& shape, void* out) const;

  // The same of a part: extents `part` from `offset` on, along each axis; out holds just these. shape: the whole tensor's. Needs a few MiB beside out. Boxes of
  // which no row (first axis) is wanted are not touched; one with any is read whole, for its checksum: n readers of
  // an n-th each read n times the bytes of a tensor that was saved as one box, and each byte once or twice where it was saved in rows like theirs.
  void read_part(std::string_view group, std::string_view name, Dtype dtype, const Shape& shape, const Shape& offset, const Shape& part, void* out) const;

  // Strict load: the group holds exactly these tensors, else one Error that lists missing, unexpected and mismatched names.
  void check_names(std::string_view group, const std::vector<ExpectedTensor>& expected) const;

  // Reads everything and verifies all checksums.
  void verify_all() const;

 private:
  const LogicalTensor* find(std::string_view group, std::string_view name) const;

  std::filesystem::path path_;
  Manifest manifest_;
  std::map<std::string, SafetensorsFile> shards_;  // headers only, no open descriptors
};

enum class Verify { structure, checksums };

// The checkpoint to resume from: the one LATEST names when it is sound; else the nearest sound one before it, then after it; without a
// usable LATEST, the newest sound one. Every departure from the plain case adds a line to warnings. nullopt: there is none and never
// was. Checkpoints that are there but all unusable are an Error, so that a run never starts afresh over them.
std::optional<std::filesystem::path> latest_checkpoint(const std::filesystem::path& checkpoints_dir, std::vector<std::string>& warnings,
                                                       Verify verify = Verify::checksums);

// d: a checkpoint directory (taken as it is), a directory of checkpoints or a run directory (latest_checkpoint of it).
std::filesystem::path resolve_checkpoint(const std::filesystem::path& d, std::vector<std::string>& warnings, Verify verify = Verify::checksums);

// True when the directory holds anything to resume from, sound or not.
bool has_checkpoints(const std::filesystem::path& checkpoints_dir);

// "step_0000000123" and back; replaced: the name ends with ".replaced".
std::string step_directory_name(int64_t step);
struct StepName {
  int64_t step = 0;
  bool replaced = false;
};
std::optional<StepName> parse_step_name(std::string_view name);

}  // namespace octet
