// Checkpoint: reading and verifying one checkpoint directory.
#include <fmt/format.h>

#include <cstring>

#include "checkpoint/store.h"
#include "checkpoint/strict_json.h"
#include "core/file_io.h"

namespace octet {
namespace fs = std::filesystem;
namespace {

[[noreturn]] void fail(const fs::path& where, std::string what) { throw Error(ExitCode::checkpoint, std::move(what), where.string()); }

// Copies a dense box into its place in the dense global tensor.
void place_box(const Box& box, const Shape& global, size_t element_bytes, const char* from, char* to) {
  const int rank = global.rank();
  const int64_t run = box.shape.cols(), rows = box.shape.rows();
  for (int64_t row = 0; row < rows; ++row) {
    int64_t rest = row, at = 0, stride = global.cols();
    for (int axis = rank - 2; axis >= 0; --axis) {
      at += (box.offset[axis] + rest % box.shape[axis]) * stride;
      rest /= box.shape[axis];
      stride *= global[axis];
    }
    at += box.offset[rank - 1];
    std::memcpy(to + static_cast<size_t>(at) * element_bytes, from + static_cast<size_t>(row * run) * element_bytes,
                static_cast<size_t>(run) * element_bytes);
  }
}

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
  const LogicalTensor* logical = find(group, tensor);
  if (!logical) fail(path_, fmt::format("no tensor {} in group {}", printable(tensor), printable(group)));
  if (logical->dtype != dtype || logical->shape != shape) {
    fail(path_, fmt::format("tensor {} of group {} is {}, {} is expected", printable(tensor), printable(group),
                            describe(logical->dtype, logical->shape), describe(dtype, shape)));
  }
  std::vector<char> buffer;
  for (const Box& box : logical->boxes) {
    const auto& shard = shards_.at(box.file);
    const size_t bytes = static_cast<size_t>(*tensor_bytes(box.shape, dtype));
    char* target = static_cast<char*>(out);
    const bool whole = box.shape == shape;
    if (!whole) {
      buffer.resize(bytes);
      target = buffer.data();
    }
    if (bytes > 0) shard.read(box.key, dtype, box.shape, target);
    check_sum(shard.path(), box, xxh64(target, bytes));
    if (!whole && bytes > 0) place_box(box, shape, size_bytes(dtype), target, static_cast<char*>(out));
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
