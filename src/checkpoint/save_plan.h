// What a save will hold, worked out before anything is written: each rank's part (its shards and boxes), and the manifest that all parts make.
// Used by store.cpp only. Errors: Error(ExitCode::internal), for a request that makes no sense is a bug.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/manifest.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/store.h"

namespace octet {

// A file to write.
struct Shard {
  std::string group, file;
  std::vector<TensorBytes> tensors;
  std::vector<size_t> sources;  // of each tensor, the index in the caller's list
};

// Of every shard.
SafetensorsMetadata shard_metadata();

// One rank's share of the manifest. Travels as text (JSON).
struct SavePart {
  struct Entry {
    std::string group, name;
    Dtype dtype = Dtype::f32;
    Shape shape;  // global
    Box box;      // the checksum is known once the bytes are written
  };
  int64_t step = 0;
  std::map<std::string, uint64_t> files;  // name -> size in bytes
  std::vector<Entry> boxes;               // in the order of the shards and of their tensors
};

void check_request(const SaveOptions& options, const std::vector<TensorToSave>& tensors, const nlohmann::json& state);

// Cuts each group, by name, into shards of at most max_shard_bytes of tensor bytes; their names are no other rank's.
std::vector<Shard> plan_shards(const std::vector<TensorToSave>& tensors, uint64_t max_shard_bytes, int rank, int ranks);

SavePart plan_part(int64_t step, const std::vector<TensorToSave>& tensors, const std::vector<Shard>& shards);

std::string to_text(const SavePart& part);
SavePart parse_part(std::string_view text);

// parts: by rank. Checks that all save the same step and that the boxes of each tensor agree about it and tile it.
Manifest merge_parts(const std::vector<SavePart>& parts, const nlohmann::json& state);

}  // namespace octet
