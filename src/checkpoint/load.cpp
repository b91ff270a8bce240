// Checkpoint: reading and verifying one checkpoint directory.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "checkpoint/store.h"
#include "checkpoint/strict_json.h"
#include "core/check.h"
#include "core/file_io.h"

namespace octet {
namespace fs = std::filesystem;
namespace {

[[noreturn]] void fail(const fs::path& where, std::string what) { throw Error(ExitCode::checkpoint, std::move(what), where.string()); }

// Where the elements of a dense box lie in a part of its global tensor, stored alone at `out`.
class BoxPlace {
 public:
  BoxPlace(const Box& box, const Shape& global, const Shape& offset, const Shape& part, size_t element_bytes, char* out)
      : box_(box), offset_(offset), part_(part), element_bytes_(static_cast<int64_t>(element_bytes)), out_(out) {
    const int rank = global.rank();
    axis_ = std::max(rank - 1, 0);
    while (axis_ > 0 && box.shape[axis_] == global[axis_] && part[axis_] == global[axis_]) --axis_;
    for (int axis = axis_ + 1; axis < rank; ++axis) unit_ *= box.shape[axis];
    if (rank == 0) {
      end = element_bytes;
      return;
    }
    int64_t row = element_bytes_;
    for (int axis = 1; axis < rank; ++axis) row *= box.shape[axis];
    const int64_t from = std::max(offset[0], box.offset[0]), to = std::min(offset[0] + part[0], box.offset[0] + box.shape[0]);
    if (from >= to || row == 0 || part.elements() == 0) return;
    begin = static_cast<uint64_t>((from - box.offset[0]) * row);
    end = static_cast<uint64_t>((to - box.offset[0]) * row);
  }

  uint64_t begin = 0, end = 0;  // the bytes of the box with wanted rows; equal: none

  // Where byte `at` belongs, null for nowhere, and for how many bytes from it on the answer goes on.
  std::pair<char*, uint64_t> address(uint64_t at) const {
    if (part_.rank() == 0) return {out_ + at, end - at};
    const int64_t unit_bytes = unit_ * element_bytes_, byte = static_cast<int64_t>(at);
    const int64_t index = byte / unit_bytes % box_.shape[axis_], within = byte % unit_bytes;   // of the axis; in its unit
    const int64_t first = offset_[axis_] - box_.offset[axis_], behind = first + part_[axis_];  // wanted ones
    int64_t rest = byte / unit_bytes / box_.shape[axis_], stride = unit_;
    const auto until = [&](int64_t end_index) { return static_cast<uint64_t>((end_index - index) * unit_bytes - within); };
    if (index < first) return {nullptr, until(std::min(first, box_.shape[axis_]))};
    if (index >= behind) return {nullptr, until(box_.shape[axis_])};
    int64_t element = (index - first) * stride;
    for (int axis = axis_ - 1; axis >= 0; --axis) {
      stride *= part_[axis + 1];
      const int64_t there = box_.offset[axis] + rest % box_.shape[axis] - offset_[axis];
      rest /= box_.shape[axis];
      if (there < 0 || there >= part_[axis]) return {nullptr, until(box_.shape[axis_])};
      element += there * stride;
    }
    return {out_ + (element * element_bytes_ + within), until(std::min(behind, box_.shape[axis_]))};
  }

 private:
  const Box& box_;
  const Shape &offset_, &part_;
  int64_t element_bytes_;
  char* out_;
  int axis_ = 0;      // box and part have the whole of the axes behind this one:
  int64_t unit_ = 1;  // so many elements lie one behind the other in both
};

void check_sum(const fs::path& shard, const Box& box, uint64_t found) {
  if (found != box.checksum) {
    fail(shard, fmt::format("tensor {} is damaged: checksum {:016x}, {:016x} was written", printable(box.key), found, box.checksum));
  }
}

// "3 missing: a, b, c" with at most ten names.
std::string name_list(std::string_view kind, const std::vector<std::string>& names) {
  constexpr size_t shown = 10;
  std::string text = fmt::format("{} {}: ", names.size(), kind);
  for (size_t i = 0; i < names.size() && i < shown; ++i) text += (i ? ", " : "") + names[i];
  if (names.size() > shown) text += fmt::format(" and {} more", names.size() - shown);
  return text;
}

std::string describe(Dtype dtype, const Shape& shape) { return fmt::format("{} {}", name(dtype), to_string(shape)); }

}  // namespace

Checkpoint Checkpoint::open(const fs::path& directory) {
  std::error_code error;
  if (!fs::is_directory(directory, error)) fail(directory, "no such checkpoint directory");
  const fs::path manifest_path = directory / manifest_file;
  if (!fs::exists(manifest_path, error)) fail(directory, fmt::format("not a complete checkpoint: it has no {}", manifest_file));

  Checkpoint checkpoint;
  checkpoint.path_ = directory;
  checkpoint.manifest_ = parse_manifest(read_file(manifest_path, manifest_max_bytes, ExitCode::checkpoint), manifest_path.string());
  for (const auto& [file, bytes] : checkpoint.manifest_.files) {
    auto shard = SafetensorsFile::open(directory / file);
    if (shard.file_bytes() != bytes) fail(shard.path(), fmt::format("file has {} bytes, the manifest says {}", shard.file_bytes(), bytes));
    checkpoint.shards_.emplace(file, std::move(shard));
  }

  std::map<std::string_view, size_t> used;
  for (const auto& [group, tensors] : checkpoint.manifest_.groups) {
    for (const auto& [tensor, logical] : tensors) {
      for (const Box& box : logical.boxes) {
        const auto& shard = checkpoint.shards_.at(box.file);
        const TensorInfo* info = shard.find(box.key);
        if (!info) fail(shard.path(), fmt::format("tensor {} of the manifest is not in the file", printable(box.key)));
        if (info->dtype != logical.dtype || info->shape != box.shape) {
          fail(shard.path(), fmt::format("tensor {} is {}, the manifest says {}", printable(box.key), describe(info->dtype, info->shape),
                                         describe(logical.dtype, box.shape)));
        }
        ++used[box.file];
      }
    }
  }
  for (const auto& [file, shard] : checkpoint.shards_) {
    if (used[file] != shard.tensors().size())
      fail(shard.path(), fmt::format("file holds {} tensors, the manifest uses {}", shard.tensors().size(), used[file]));
  }
  return checkpoint;
}

const LogicalTensor* Checkpoint::find(std::string_view group, std::string_view tensor) const {
  const auto g = manifest_.groups.find(std::string(group));
  if (g == manifest_.groups.end()) return nullptr;
  const auto t = g->second.find(std::string(tensor));
  return t == g->second.end() ? nullptr : &t->second;
}

bool Checkpoint::has(std::string_view group, std::string_view tensor) const { return find(group, tensor) != nullptr; }

std::vector<NamedTensor> Checkpoint::list() const {
  std::vector<NamedTensor> all;
  for (const auto& [group, tensors] : manifest_.groups) {
    for (const auto& [tensor, logical] : tensors) all.push_back({group, tensor, logical.dtype, logical.shape});
  }
  return all;
}

void Checkpoint::read(std::string_view group, std::string_view tensor, Dtype dtype, const Shape& shape, void* out) const {
  Shape from = shape;
  for (int axis = 0; axis < shape.rank(); ++axis) from = from.with(axis, 0);
  read_part(group, tensor, dtype, shape, from, shape, out);
}

void Checkpoint::read_part(std::string_view group, std::string_view tensor, Dtype dtype, const Shape& shape, const Shape& offset, const Shape& part,
                           void* out) const {
  const LogicalTensor* logical = find(group, tensor);
  if (!logical) fail(path_, fmt::format("no tensor {} in group {}", printable(tensor), printable(group)));
  if (logical->dtype != dtype || logical->shape != shape) {
    fail(path_, fmt::format("tensor {} of group {} is {}, {} is expected", printable(tensor), printable(group),
                            describe(logical->dtype, logical->shape), describe(dtype, shape)));
  }
  bool inside = offset.rank() == shape.rank() && part.rank() == shape.rank();
  for (int axis = 0; inside && axis < shape.rank(); ++axis) inside = offset[axis] >= 0 && part[axis] >= 0 && part[axis] <= shape[axis] - offset[axis];
  OCTET_CHECK(inside, "part {} at {} of tensor {}, which is {}", to_string(part), to_string(offset), tensor, to_string(shape));
  for (const Box& box : logical->boxes) {
    const BoxPlace box_place(box, shape, offset, part, size_bytes(dtype), static_cast<char*>(out));
    if (box_place.begin == box_place.end && box.shape.elements() > 0) continue;
    const auto place = [&](uint64_t at, size_t bytes) -> void* {
      if (at < box_place.begin || at + bytes > box_place.end) return nullptr;
      const auto [target, run] = box_place.address(at);
      return run >= bytes ? target : nullptr;
    };
    const auto used = [&](uint64_t at, const void* data, size_t bytes) {
      const char* piece = static_cast<const char*>(data);
      const uint64_t end = std::min<uint64_t>(at + bytes, box_place.end);
      for (uint64_t byte = std::max(at, box_place.begin); byte < end;) {
        const auto [target, run] = box_place.address(byte);
        const uint64_t n = std::min(run, end - byte);
        if (target && target != piece + (byte - at)) std::memcpy(target, piece + (byte - at), static_cast<size_t>(n));
        byte += n;
      }
    };
    const auto& shard = shards_.at(box.file);
    check_sum(shard.path(), box, shard.read_pieces(box.key, place, used));
  }
}

void Checkpoint::check_names(std::string_view group, const std::vector<ExpectedTensor>& expected) const {
  std::vector<std::string> missing, unexpected, mismatched;
  std::map<std::string_view, const ExpectedTensor*> wanted;
  for (const auto& e : expected) {
    if (!wanted.emplace(e.name, &e).second) throw Error(ExitCode::internal, fmt::format("tensor {} is expected twice", e.name), std::string(group));
    const LogicalTensor* found = find(group, e.name);
    if (!found) {
      missing.push_back(printable(e.name));
    } else if (found->dtype != e.dtype || found->shape != e.shape) {
      mismatched.push_back(
          fmt::format("{} is {} instead of {}", printable(e.name), describe(found->dtype, found->shape), describe(e.dtype, e.shape)));
    }
  }
  if (const auto g = manifest_.groups.find(std::string(group)); g != manifest_.groups.end()) {
    for (const auto& [tensor, logical] : g->second) {
      if (!wanted.contains(tensor)) unexpected.push_back(printable(tensor));
    }
  }
  std::string text;
  const auto add = [&](std::string_view kind, const std::vector<std::string>& names) {
    if (!names.empty()) text += (text.empty() ? "" : "; ") + name_list(kind, names);
  };
  add("missing", missing);
  add("unexpected", unexpected);
  add("of another shape or type", mismatched);
  if (!text.empty()) {
    throw Error(ExitCode::checkpoint, fmt::format("group \"{}\" does not fit the model: {}", group, text), path_.string(),
                "use the model section the checkpoint was saved with");
  }
}

void Checkpoint::verify_all() const {
  for (const auto& [group, tensors] : manifest_.groups) {
    for (const auto& [tensor, logical] : tensors) {
      for (const Box& box : logical.boxes) {
        const auto& shard = shards_.at(box.file);
        check_sum(shard.path(), box, shard.checksum(box.key));
      }
    }
  }
}

}  // namespace octet
