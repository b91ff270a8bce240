#include "checkpoint/save_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/check.h"

namespace octet {
namespace {

const Shape& global_shape(const TensorToSave& t) { return t.global_shape ? *t.global_shape : t.shape; }

Shape offset_of(const TensorToSave& t) {
  if (t.global_shape) return t.offset;
  return *make_shape(std::vector<int64_t>(static_cast<size_t>(t.shape.rank()), 0));
}

// A whole tensor keeps its name in the shard, so that other tools can read it; a box adds its offset.
std::string shard_key(const TensorToSave& t) {
  if (!t.global_shape || *t.global_shape == t.shape) return t.name;
  return fmt::format("{}@{}", t.name, to_string(t.offset));
}

std::string shard_file(const std::string& group, int number, int rank, int ranks) {
  if (ranks == 1) return fmt::format("{}-{:05d}.safetensors", group, number);
  return fmt::format("{}-r{:04d}-{:05d}.safetensors", group, rank, number);
}

// What would not come back from JSON as it went in.
void check_state(const nlohmann::json& value, const std::string& at, int depth = 0) {
  constexpr int max_depth = 60;  // the reader takes 64, the manifest around the state needs some
  OCTET_CHECK(depth < max_depth, "checkpoint state is nested deeper than {}", max_depth);
  OCTET_CHECK(!value.is_number_float() || std::isfinite(value.get<double>()), "checkpoint state {} is not finite, JSON cannot hold it", at);
  if (!value.is_structured()) return;
  for (const auto& [key, member] : value.items()) check_state(member, at + "/" + key, depth + 1);
}

std::vector<int64_t> dims(const Shape& s) {
  std::vector<int64_t> out;
  for (int axis = 0; axis < s.rank(); ++axis) out.push_back(s[axis]);
  return out;
}

Shape shape_of(const nlohmann::json& value) {
  const auto shape = make_shape(value.get<std::vector<int64_t>>());
  OCTET_CHECK(shape, "a rank sent the impossible shape {}", value.dump());
  return *shape;
}

// owners: the rank of each box.
void check_tiling(const std::string& tensor, const LogicalTensor& logical, const std::vector<int>& owners) {
  OCTET_CHECK(logical.boxes.size() <= manifest_max_boxes, "tensor {} has {} boxes, a manifest at most {}", tensor, logical.boxes.size(),
              manifest_max_boxes);
  const std::string fault = tiling_fault(logical.shape, logical.boxes);
  if (fault.empty()) return;
  if (const auto pair = overlapping_boxes(logical.boxes); pair && owners[pair->first] != owners[pair->second]) {
    const auto [a, b] = *pair;
    check_failed("boxes of several ranks do not overlap", __FILE__, __LINE__,
                 fmt::format("tensor {} is saved twice: rank {}'s box at {} of shape {} and rank {}'s at {} of shape {} overlap", tensor, owners[a],
                             to_string(logical.boxes[a].offset), to_string(logical.boxes[a].shape), owners[b], to_string(logical.boxes[b].offset),
                             to_string(logical.boxes[b].shape)));
  }
  check_failed("fault.empty()", __FILE__, __LINE__, fmt::format("tensor {}: {}", tensor, fault));
}

}  // namespace

SafetensorsMetadata shard_metadata() { return {{"format", "pt"}}; }  // transformers refuses files without it

void check_request(const SaveOptions& options, const std::vector<TensorToSave>& tensors, const nlohmann::json& state) {
  OCTET_CHECK(options.step >= 0 && options.keep_last >= 0 && options.max_shard_bytes > 0, "save options: step {}, keep_last {}, max_shard_bytes {}",
              options.step, options.keep_last, options.max_shard_bytes);
  for (const auto& t : tensors) {
    OCTET_CHECK(valid_group_name(t.group), "checkpoint group name '{}'", t.group);
    OCTET_CHECK(tensor_bytes(global_shape(t), t.dtype) && tensor_bytes(t.shape, t.dtype), "tensor {} has impossible shape {}", t.name,
                to_string(t.shape));
  }
  check_state(state, "");
}

std::vector<Shard> plan_shards(const std::vector<TensorToSave>& tensors, uint64_t max_shard_bytes, int rank, int ranks) {
  std::map<std::string, std::map<std::string, size_t>> groups;
  for (size_t i = 0; i < tensors.size(); ++i) {
    OCTET_CHECK(groups[tensors[i].group].emplace(shard_key(tensors[i]), i).second, "tensor {} of group {} is saved twice", tensors[i].name,
                tensors[i].group);
  }
  std::vector<Shard> shards;
  for (const auto& [group, members] : groups) {
    uint64_t room = 0;
    int number = 0;
    for (const auto& [key, i] : members) {
      const auto& t = tensors[i];
      const uint64_t bytes = *tensor_bytes(t.shape, t.dtype);
      if (number == 0 || bytes > room) {
        shards.push_back({group, shard_file(group, ++number, rank, ranks), {}, {}});
        room = max_shard_bytes;
      }
      room -= std::min(room, bytes);
      shards.back().tensors.push_back({key, t.dtype, t.shape, t.data, t.fetch});
      shards.back().sources.push_back(i);
    }
  }
  return shards;
}

SavePart plan_part(int64_t step, const std::vector<TensorToSave>& tensors, const std::vector<Shard>& shards) {
  SavePart part;
  part.step = step;
  for (const Shard& shard : shards) {
    part.files[shard.file] = safetensors_file_bytes(shard.tensors, shard_metadata());
    for (size_t k = 0; k < shard.sources.size(); ++k) {
      const auto& t = tensors[shard.sources[k]];
      part.boxes.push_back({t.group, t.name, t.dtype, global_shape(t), {offset_of(t), t.shape, shard.file, shard.tensors[k].name, 0}});
    }
  }
  return part;
}

std::string to_text(const SavePart& part) {
  nlohmann::json boxes = nlohmann::json::array();
  for (const auto& [group, tensor, dtype, shape, box] : part.boxes) {
    boxes.push_back({group, tensor, static_cast<int>(dtype), dims(shape), dims(box.offset), dims(box.shape), box.file, box.key});
  }
  return nlohmann::json{{"step", part.step}, {"files", part.files}, {"boxes", std::move(boxes)}}.dump();  // names are UTF-8: they have been in a header
}

SavePart parse_part(std::string_view text) {
  const auto json = nlohmann::json::parse(text);
  SavePart part;
  part.step = json.at("step").get<int64_t>();
  part.files = json.at("files").get<std::map<std::string, uint64_t>>();
  for (const auto& b : json.at("boxes")) {
    part.boxes.push_back({b.at(0).get<std::string>(),
                          b.at(1).get<std::string>(),
                          static_cast<Dtype>(b.at(2).get<int>()),
                          shape_of(b.at(3)),
                          {shape_of(b.at(4)), shape_of(b.at(5)), b.at(6).get<std::string>(), b.at(7).get<std::string>(), 0}});
  }
  return part;
}

Manifest merge_parts(const std::vector<SavePart>& parts, const nlohmann::json& state) {
  Manifest manifest;
  manifest.step = parts.at(0).step;
  manifest.state = state;
  std::map<const LogicalTensor*, std::vector<int>> owners;
  for (int rank = 0; rank < static_cast<int>(parts.size()); ++rank) {
    const SavePart& part = parts[static_cast<size_t>(rank)];
    OCTET_CHECK(part.step == manifest.step, "rank {} saves step {}, rank 0 step {}", rank, part.step, manifest.step);
    for (const auto& [file, bytes] : part.files) OCTET_CHECK(manifest.files.emplace(file, bytes).second, "two ranks write the file {}", file);
    for (const auto& e : part.boxes) {
      LogicalTensor& logical = manifest.groups[e.group][e.name];
      auto& ranks = owners[&logical];
      if (!ranks.empty() && (logical.dtype != e.dtype || logical.shape != e.shape)) {
        const std::string whose = ranks.front() == rank ? "" : fmt::format(" between the ranks {} and {}", ranks.front(), rank);
        check_failed("boxes agree", __FILE__, __LINE__, fmt::format("boxes of tensor {} differ in dtype or global shape{}", e.name, whose));
      }
      logical.dtype = e.dtype;
      logical.shape = e.shape;
      logical.boxes.push_back(e.box);
      ranks.push_back(rank);
    }
  }
  for (const auto& [group, members] : manifest.groups) {
    for (const auto& [tensor, logical] : members) check_tiling(tensor, logical, owners.at(&logical));
  }
  return manifest;
}

}  // namespace octet
