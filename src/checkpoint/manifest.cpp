#include "checkpoint/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>

#include "checkpoint/safetensors.h"
#include "checkpoint/strict_json.h"
#include "core/error.h"

namespace octet {
namespace {

using nlohmann::json;

constexpr const char* format_name = "octet checkpoint";

json to_json(const Shape& s) {
  json dims = json::array();
  for (int axis = 0; axis < s.rank(); ++axis) dims.push_back(s[axis]);
  return dims;
}

std::string hex(uint64_t value) { return fmt::format("{:016x}", value); }

// Of everything but the checksum itself: keys are sorted and numbers printed in their shortest exact form, so the compact
// text is the same before writing and after reading.
std::string content_checksum(const json& manifest) {
  const std::string text = manifest.dump();
  return hex(xxh64(text.data(), text.size()));
}

bool valid_file_name(std::string_view name) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.';
  };
  return !name.empty() && name.size() <= 200 && name.front() != '.' && name.ends_with(".safetensors") &&
         std::all_of(name.begin(), name.end(), allowed);
}

class Reader {
 public:
  explicit Reader(const std::string& where) : where_(where) {}

  Manifest read(json text) const {
    if (!text.is_object()) fail("not a JSON object");
    const auto format = text.find("format");
    if (format == text.end() || *format != format_name) fail(fmt::format("key \"format\" is not \"{}\"", format_name));
    const int64_t version = count(member(text, "format_version", "manifest"), "format_version");
    if (version != checkpoint_format_version) {
      throw Error(ExitCode::checkpoint, fmt::format("checkpoint format version {}, this build reads {}", version, checkpoint_format_version), where_,
                  "use the octet version that wrote it");
    }
    const json stored = member(text, "checksum", "manifest");
    text.erase("checksum");
    if (stored != content_checksum(text)) fail("checksum does not match: the file is damaged");
    only(text, {"format", "format_version", "step", "files", "groups", "state"}, "manifest");

    Manifest manifest;
    manifest.step = count(member(text, "step", "manifest"), "step");
    read_files(member(text, "files", "manifest"), manifest);
    const json& groups = object(member(text, "groups", "manifest"), "groups");
    for (const auto& [group, tensors] : groups.items()) {
      if (!valid_group_name(group)) fail(fmt::format("group name {}", printable(group)));
      TensorGroup& out = manifest.groups[group];
      for (const auto& [name, entry] : object(tensors, group).items()) out[name] = tensor(name, entry, manifest);
    }
    manifest.state = std::move(text["state"]);
    return manifest;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const { throw Error(ExitCode::checkpoint, "malformed manifest: " + what, where_); }

  const json& member(const json& value, const char* key, const std::string& in) const {
    const auto it = value.find(key);
    if (it == value.end()) fail(fmt::format("key \"{}\" is missing in {}", key, in));
    return *it;
  }
  const json& object(const json& value, const std::string& what) const {
    if (!value.is_object()) fail(fmt::format("{} is not an object", what));
    return value;
  }
  int64_t count(const json& value, const std::string& what) const {
    if (!is_count(value)) fail(fmt::format("{} is not a non-negative integer", what));
    return value.get<int64_t>();
  }
  std::string text_of(const json& value, const std::string& what) const {
    if (!value.is_string()) fail(fmt::format("{} is not a string", what));
    return value.get<std::string>();
  }
  void only(const json& value, std::initializer_list<std::string_view> allowed, const std::string& what) const {
    for (const auto& [key, unused] : object(value, what).items()) {
      if (std::find(allowed.begin(), allowed.end(), key) == allowed.end()) fail(fmt::format("unknown key {} in {}", printable(key), what));
    }
  }
  Shape shape(const json& value, const std::string& what) const {
    if (!value.is_array() || !std::all_of(value.begin(), value.end(), is_count))
      fail(fmt::format("{} is not an array of non-negative integers", what));
    const auto s = make_shape(value.get<std::vector<int64_t>>());
    if (!s) fail(fmt::format("{} has more than four axes or too many elements", what));
    return *s;
  }
  uint64_t checksum(const json& value, const std::string& what) const {
    const std::string text = text_of(value, what);
    const auto digit = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
    if (text.size() != 16 || !std::all_of(text.begin(), text.end(), digit)) fail(fmt::format("{} is not 16 hexadecimal digits", what));
    return std::stoull(text, nullptr, 16);
  }

  void read_files(const json& files, Manifest& manifest) const {
    for (const auto& [file, entry] : object(files, "files").items()) {
      if (!valid_file_name(file)) fail(fmt::format("file name {}", printable(file)));
      only(entry, {"bytes"}, "files entry");
      manifest.files[file] = static_cast<uint64_t>(count(member(entry, "bytes", "files entry"), "bytes"));
    }
  }

  LogicalTensor tensor(const std::string& name, const json& entry, const Manifest& manifest) const {
    const std::string what = "tensor " + printable(name);
    only(entry, {"dtype", "shape", "boxes"}, what);
    LogicalTensor t;
    const auto dtype = dtype_from_name(text_of(member(entry, "dtype", what), what + " dtype"));
    if (!dtype) fail(what + " has an unknown dtype");
    t.dtype = *dtype;
    t.shape = shape(member(entry, "shape", what), what + " shape");
    if (!tensor_bytes(t.shape, t.dtype)) fail(what + " has too many bytes");
    const json& boxes = member(entry, "boxes", what);
    if (!boxes.is_array() || boxes.empty() || boxes.size() > manifest_max_boxes)
      fail(fmt::format("{} does not have 1 to {} boxes", what, manifest_max_boxes));
    for (const json& b : boxes) {
      only(b, {"offset", "shape", "file", "key", "checksum"}, what + " box");
      Box box;
      box.offset = shape(member(b, "offset", what), what + " box offset");
      box.shape = shape(member(b, "shape", what), what + " box shape");
      box.file = text_of(member(b, "file", what), what + " box file");
      box.key = text_of(member(b, "key", what), what + " box key");
      box.checksum = checksum(member(b, "checksum", what), what + " box checksum");
      if (!manifest.files.contains(box.file)) fail(fmt::format("{} lies in file {}, which \"files\" does not list", what, printable(box.file)));
      t.boxes.push_back(std::move(box));
    }
    if (const std::string fault = tiling_fault(t.shape, t.boxes); !fault.empty()) fail(what + ": " + fault);
    return t;
  }

  const std::string& where_;
};

bool overlap(const Box& a, const Box& b) {
  if (a.shape.rank() != b.shape.rank()) return false;
  for (int axis = 0; axis < a.shape.rank(); ++axis) {  // differences of offsets cannot overflow, sums of one and a length could
    if (a.shape[axis] <= b.offset[axis] - a.offset[axis] || b.shape[axis] <= a.offset[axis] - b.offset[axis]) return false;
  }
  return true;
}

}  // namespace

bool valid_group_name(std::string_view group) {
  const auto allowed = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_'; };
  return !group.empty() && group.size() <= 64 && std::all_of(group.begin(), group.end(), allowed);
}

std::optional<std::pair<size_t, size_t>> overlapping_boxes(const std::vector<Box>& boxes) {
  std::vector<size_t> filled;
  for (size_t i = 0; i < boxes.size(); ++i) {
    if (boxes[i].shape.elements() > 0) filled.push_back(i);
  }
  // Sorted along the first axis, only boxes that share rows need be compared.
  const auto row = [&](size_t i) { return boxes[i].offset.rank() > 0 ? boxes[i].offset[0] : 0; };
  const auto rows = [&](size_t i) { return boxes[i].shape.rank() > 0 ? boxes[i].shape[0] : 1; };
  std::stable_sort(filled.begin(), filled.end(), [&](size_t a, size_t b) { return row(a) < row(b); });
  for (size_t i = 0; i < filled.size(); ++i) {
    for (size_t j = i + 1; j < filled.size() && row(filled[j]) - row(filled[i]) < rows(filled[i]); ++j) {
      if (overlap(boxes[filled[i]], boxes[filled[j]])) return std::minmax(filled[i], filled[j]);
    }
  }
  return std::nullopt;
}

std::string tiling_fault(const Shape& shape, const std::vector<Box>& boxes) {
  const int rank = shape.rank();
  int64_t covered = 0;  // cannot overflow before the overlap test below has a say: see the running check
  for (const Box& b : boxes) {
    if (b.offset.rank() != rank || b.shape.rank() != rank) return "a box has another number of axes than the tensor";
    for (int axis = 0; axis < rank; ++axis) {
      if (b.offset[axis] > shape[axis] || b.shape[axis] > shape[axis] - b.offset[axis]) {
        return fmt::format("box at {} of shape {} sticks out of {}", to_string(b.offset), to_string(b.shape), to_string(shape));
      }
    }
    if (__builtin_add_overflow(covered, b.shape.elements(), &covered)) return "boxes overlap";
  }
  if (covered > shape.elements()) return "boxes overlap";
  if (covered < shape.elements()) return "boxes leave a hole";
  if (const auto pair = overlapping_boxes(boxes))
    return fmt::format("boxes at {} and {} overlap", to_string(boxes[pair->first].offset), to_string(boxes[pair->second].offset));
  return {};
}

std::string to_text(const Manifest& manifest) {
  json groups = json::object(), files = json::object();
  for (const auto& [group, tensors] : manifest.groups) {
    json& out = groups[group] = json::object();
    for (const auto& [name, t] : tensors) {
      json boxes = json::array();
      for (const Box& b : t.boxes) {
        boxes.push_back(
            {{"offset", to_json(b.offset)}, {"shape", to_json(b.shape)}, {"file", b.file}, {"key", b.key}, {"checksum", hex(b.checksum)}});
      }
      out[name] = {{"dtype", octet::name(t.dtype)}, {"shape", to_json(t.shape)}, {"boxes", std::move(boxes)}};
    }
  }
  for (const auto& [file, bytes] : manifest.files) files[file] = {{"bytes", bytes}};
  json text = {{"format", format_name},       {"format_version", checkpoint_format_version},
               {"step", manifest.step},       {"files", std::move(files)},
               {"groups", std::move(groups)}, {"state", manifest.state}};
  try {
    text["checksum"] = content_checksum(text);
    return text.dump(1) + "\n";
  } catch (const json::exception&) {
    throw Error(ExitCode::internal, "a name or a text of the state is not UTF-8", manifest_file);
  }
}

Manifest parse_manifest(std::string_view text, const std::string& where) {
  json parsed = parse_strict_json(text, where);
  return Reader(where).read(std::move(parsed));
}

}  // namespace octet
