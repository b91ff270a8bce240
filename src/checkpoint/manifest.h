// manifest.json: what a checkpoint directory holds, by logical tensor. docs/reference/checkpoint_format.md is its definition.
#pragma once
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/dtype.h"
#include "core/shape.h"

namespace octet {

constexpr int64_t checkpoint_format_version = 1;
constexpr uint64_t manifest_max_bytes = uint64_t{256} << 20;
constexpr size_t manifest_max_boxes = 16384;  // of one tensor
constexpr const char* manifest_file = "manifest.json";

// A part of a logical tensor: global elements [offset, offset + shape) of each axis, stored as tensor `key` of shard `file`.
struct Box {
  Shape offset, shape;
  std::string file, key;
  uint64_t checksum = 0;  // XXH64 of the box's bytes
};

struct LogicalTensor {
  Dtype dtype = Dtype::f32;
  Shape shape;             // global
  std::vector<Box> boxes;  // tile the tensor exactly
};

using TensorGroup = std::map<std::string, LogicalTensor>;

struct Manifest {
  int64_t step = 0;
  std::map<std::string, TensorGroup> groups;
  std::map<std::string, uint64_t> files;  // shard file name -> size in bytes
  nlohmann::json state;
};

std::string to_text(const Manifest& manifest);

// Throws Error(ExitCode::checkpoint): bad JSON, wrong checksum, unknown version or key, file names that leave the directory,
// boxes that overlap, leave a hole or stick out of their tensor.
Manifest parse_manifest(std::string_view text, const std::string& where);

// The reason why boxes do not tile `shape`, empty when they do.
std::string tiling_fault(const Shape& shape, const std::vector<Box>& boxes);

// Two boxes with an element in common, as indices in ascending order; boxes without elements and of unequal numbers of axes have none.
std::optional<std::pair<size_t, size_t>> overlapping_boxes(const std::vector<Box>& boxes);

// [a-z0-9_]+
bool valid_group_name(std::string_view group);

}  // namespace octet
