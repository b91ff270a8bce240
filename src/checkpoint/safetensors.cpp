#include "checkpoint/safetensors.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "checkpoint/strict_json.h"
#include "core/check.h"
#include "core/file_io.h"

namespace octet {
namespace {

static_assert(std::endian::native == std::endian::little, "tensor bytes are written as they lie in memory");

constexpr std::string_view metadata_key = "__metadata__";
constexpr std::string_view dtype_prefix = "octet_dtype:";
constexpr size_t piece_bytes = size_t{4} << 20;  // hashed and written while still in cache

struct DtypeEntry {
  std::string_view text;
  Dtype dtype;
};
// In descending order of the format's own dtype ranking, which is the order of tensors in a file.
constexpr DtypeEntry dtype_table[] = {{"F32", Dtype::f32},      {"I32", Dtype::i32},      {"BF16", Dtype::bf16}, {"F8_E8M0", Dtype::e8m0},
                                      {"F8_E4M3", Dtype::e4m3}, {"F8_E5M2", Dtype::e5m2}, {"U8", Dtype::u8}};

bool held_as_u8(Dtype d) { return d == Dtype::e2m1 || d == Dtype::e3m2 || d == Dtype::e2m3; }

size_t file_rank(Dtype d) {
  const Dtype stored = held_as_u8(d) ? Dtype::u8 : d;
  size_t rank = 0;
  while (dtype_table[rank].dtype != stored) ++rank;
  return rank;
}

std::string json_string(std::string_view text) {
  try {
    return nlohmann::json(std::string(text)).dump();
  } catch (const nlohmann::json::exception&) {
    throw Error(ExitCode::internal, fmt::format("name {} is not UTF-8", printable(text)), "safetensors writer");
  }
}

struct Layout {
  std::vector<size_t> order;  // file position -> index in the caller's list
  std::string prefix;         // length field and padded header
  uint64_t data_bytes = 0;
};

uint64_t checked_bytes(const TensorBytes& t) {
  const auto bytes = tensor_bytes(t.shape, t.dtype);
  OCTET_CHECK(bytes, "tensor {} has impossible shape {}", t.name, to_string(t.shape));
  return *bytes;
}

Layout make_layout(const std::vector<TensorBytes>& tensors, SafetensorsMetadata metadata) {
  Layout layout;
  layout.order.resize(tensors.size());
  std::iota(layout.order.begin(), layout.order.end(), size_t{0});
  std::sort(layout.order.begin(), layout.order.end(), [&](size_t a, size_t b) {
    const size_t ra = file_rank(tensors[a].dtype), rb = file_rank(tensors[b].dtype);
    return ra != rb ? ra < rb : tensors[a].name < tensors[b].name;
  });
  std::set<std::string_view> names;
  for (const auto& t : tensors) {
    OCTET_CHECK(t.name != metadata_key && names.insert(t.name).second, "tensor name {} is reserved or used twice in one file", t.name);
    if (held_as_u8(t.dtype)) metadata[std::string(dtype_prefix) + t.name] = std::string(name(t.dtype));
  }

  std::string text = "{";
  if (!metadata.empty()) {
    text += json_string(metadata_key) + ":{";
    for (const auto& [key, value] : metadata) text += fmt::format("{}:{},", json_string(key), json_string(value));
    text.back() = '}';
    text += ',';
  }
  for (size_t i : layout.order) {
    const auto& t = tensors[i];
    const uint64_t begin = layout.data_bytes, bytes = checked_bytes(t);
    OCTET_CHECK(bytes <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) - begin, "file would exceed 2^63 bytes");
    layout.data_bytes += bytes;
    std::string dims;
    for (int axis = 0; axis < t.shape.rank(); ++axis) dims += fmt::format("{}{}", axis ? "," : "", t.shape[axis]);
    text += fmt::format(R"({}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}},)", json_string(t.name), dtype_table[file_rank(t.dtype)].text,
                        dims, begin, layout.data_bytes);
  }
  if (text.size() > 1) text.pop_back();
  text += '}';
  text.append((8 - text.size() % 8) % 8, ' ');
  OCTET_CHECK(text.size() <= safetensors_max_header_bytes, "safetensors header of {} bytes", text.size());

  const uint64_t length = text.size();
  layout.prefix.resize(sizeof length);
  std::memcpy(layout.prefix.data(), &length, sizeof length);
  layout.prefix += text;
  return layout;
}

class Hasher {
 public:
  Hasher() { XXH64_reset(&state_, 0); }
  void update(const void* data, size_t bytes) { XXH64_update(&state_, data, bytes); }
  uint64_t digest() const { return XXH64_digest(&state_); }

 private:
  XXH64_state_t state_;
};

uint64_t write_tensor(File& file, const TensorBytes& t) {
  const uint64_t bytes = checked_bytes(t);
  OCTET_CHECK(t.data != nullptr || t.fetch || bytes == 0, "tensor {} has no data", t.name);
  Hasher hasher;
  const auto write = [&](const void* start) {
    const char* data = static_cast<const char*>(start);
    for (uint64_t at = 0; at < bytes; at += piece_bytes) {
      const size_t n = static_cast<size_t>(std::min<uint64_t>(piece_bytes, bytes - at));
      hasher.update(data + at, n);
      file.write_all(data + at, n);
    }
  };
  if (t.fetch) {
    t.fetch(write);
  } else {
    write(t.data);
  }
  return hasher.digest();
}

[[noreturn]] void malformed(const std::string& where, std::string what) {
  throw Error(ExitCode::checkpoint, "malformed safetensors file: " + std::move(what), where);
}

SafetensorsMetadata parse_metadata(const nlohmann::json& value, const std::string& where) {
  if (!value.is_object()) malformed(where, "__metadata__ is not an object");
  SafetensorsMetadata metadata;
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string()) malformed(where, fmt::format("__metadata__ value of {} is not a string", printable(key)));
    metadata[key] = text.get<std::string>();
  }
  return metadata;
}

// One header entry, with offsets still relative to the data section.
TensorInfo parse_entry(const std::string& tensor, const nlohmann::json& value, const std::string& where) {
  const auto bad = [&](std::string_view what) { malformed(where, fmt::format("tensor {}: {}", printable(tensor), what)); };
  if (!value.is_object() || value.size() != 3) bad("entry is not an object of exactly dtype, shape, data_offsets");
  const auto dtype = value.find("dtype"), shape = value.find("shape"), offsets = value.find("data_offsets");
  if (dtype == value.end() || shape == value.end() || offsets == value.end()) bad("entry is not an object of exactly dtype, shape, data_offsets");

  TensorInfo info;
  info.name = tensor;
  if (!dtype->is_string()) bad("dtype is not a string");
  const auto* entry = std::find_if(std::begin(dtype_table), std::end(dtype_table),
                                   [&](const DtypeEntry& e) { return e.text == dtype->get_ref<const std::string&>(); });
  if (entry == std::end(dtype_table)) {
    bad(fmt::format("dtype {} is not one of F32 I32 BF16 F8_E8M0 F8_E4M3 F8_E5M2 U8", printable(dtype->get_ref<const std::string&>())));
  }
  info.dtype = entry->dtype;

  if (!shape->is_array() || !std::all_of(shape->begin(), shape->end(), is_count)) bad("shape is not an array of non-negative integers");
  const auto dims = make_shape(shape->get<std::vector<int64_t>>());
  if (!dims) bad("shape has more than four axes or too many elements");
  info.shape = *dims;
  const auto bytes = tensor_bytes(info.shape, info.dtype);
  if (!bytes) bad("shape has too many bytes");

  if (!offsets->is_array() || offsets->size() != 2 || !is_count((*offsets)[0]) || !is_count((*offsets)[1]))
    bad("data_offsets is not two non-negative integers");
  info.begin = (*offsets)[0].get<uint64_t>();
  info.end = (*offsets)[1].get<uint64_t>();
  if (info.end < info.begin) bad("data_offsets end before they begin");
  if (info.end - info.begin != *bytes) {
    bad(fmt::format("shape {} of {} takes {} bytes, data_offsets span {}", to_string(info.shape), entry->text, *bytes, info.end - info.begin));
  }
  return info;
}

void apply_octet_dtypes(SafetensorsHeader& header, const std::string& where) {
  for (auto& t : header.tensors) {
    const auto it = header.metadata.find(std::string(dtype_prefix) + t.name);
    if (it == header.metadata.end()) continue;
    const auto dtype = dtype_from_name(it->second);
    if (t.dtype != Dtype::u8 || !dtype || !held_as_u8(*dtype)) {
      malformed(where, fmt::format("__metadata__ gives tensor {} the type {}", printable(t.name), printable(it->second)));
    }
    t.dtype = *dtype;
    header.metadata.erase(it);
  }
  const auto left = header.metadata.lower_bound(std::string(dtype_prefix));
  if (left != header.metadata.end() && left->first.starts_with(dtype_prefix))
    malformed(where, fmt::format("__metadata__ key {} names no tensor", printable(left->first)));
}

}  // namespace

std::optional<Dtype> dtype_from_name(std::string_view text) {
  for (int i = 0; i <= static_cast<int>(Dtype::e8m0); ++i) {
    if (name(static_cast<Dtype>(i)) == text) return static_cast<Dtype>(i);
  }
  return std::nullopt;
}

std::optional<Shape> make_shape(const std::vector<int64_t>& d) {
  int64_t elements = 1;
  for (int64_t dim : d) {
    // Axes of length 0 are left out of the product so that no order of multiplication can overflow later.
    if (dim < 0 || (dim > 0 && __builtin_mul_overflow(elements, dim, &elements))) return std::nullopt;
  }
  switch (d.size()) {
    case 0: return Shape{};
    case 1: return Shape{d[0]};
    case 2: return Shape{d[0], d[1]};
    case 3: return Shape{d[0], d[1], d[2]};
    case 4: return Shape{d[0], d[1], d[2], d[3]};
    default: return std::nullopt;
  }
}

std::optional<uint64_t> tensor_bytes(const Shape& shape, Dtype dtype) {
  int64_t bytes = static_cast<int64_t>(size_bytes(dtype));
  bool empty = false;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    if (shape[axis] < 0) return std::nullopt;
    if (shape[axis] == 0) {
      empty = true;
    } else if (__builtin_mul_overflow(bytes, shape[axis], &bytes)) {
      return std::nullopt;
    }
  }
  return empty ? 0 : static_cast<uint64_t>(bytes);
}

uint64_t xxh64(const void* data, size_t bytes) { return XXH64(data, bytes, 0); }

std::vector<uint64_t> write_safetensors(const std::filesystem::path& path, const std::vector<TensorBytes>& tensors,
                                        const SafetensorsMetadata& metadata) {
  const Layout layout = make_layout(tensors, metadata);
  std::vector<uint64_t> checksums(tensors.size());
  File file = File::create(path, ExitCode::checkpoint);
  try {
    file.write_all(layout.prefix.data(), layout.prefix.size());
    for (size_t i : layout.order) checksums[i] = write_tensor(file, tensors[i]);
    file.sync();
    file.close();
  } catch (const Error&) {
    ::unlink(path.c_str());
    throw;
  }
  return checksums;
}

uint64_t safetensors_file_bytes(const std::vector<TensorBytes>& tensors, const SafetensorsMetadata& metadata) {
  const Layout layout = make_layout(tensors, metadata);
  return layout.prefix.size() + layout.data_bytes;
}

SafetensorsHeader parse_safetensors_header(std::string_view header, uint64_t file_bytes, const std::string& where) {
  if (header.empty() || header.front() != '{') malformed(where, "header does not begin with '{'");
  const size_t last = header.find_last_not_of(' ');
  if (header[last] != '}') malformed(where, "header does not end with '}' and spaces");
  // Depth 3: file, entry, shape. The array limit only bounds memory: parse_entry refuses long shapes with a better message.
  const auto json = parse_strict_json(header.substr(0, last + 1), where, {.max_depth = 3, .max_array = 64});

  SafetensorsHeader result;
  for (const auto& [key, value] : json.items()) {
    if (key == metadata_key) {
      result.metadata = parse_metadata(value, where);
    } else {
      result.tensors.push_back(parse_entry(key, value, where));
    }
  }
  std::sort(result.tensors.begin(), result.tensors.end(),
            [](const TensorInfo& a, const TensorInfo& b) { return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name); });

  const uint64_t data_start = 8 + header.size();
  if (file_bytes < data_start) malformed(where, "file ends inside the header");
  uint64_t covered = 0;
  for (auto& t : result.tensors) {
    if (t.begin != covered) {
      malformed(where, fmt::format("tensor {} begins at data byte {}, {} expected: {}", printable(t.name), t.begin, covered,
                                   t.begin < covered ? "overlap" : "hole"));
    }
    covered = t.end;
    if (covered > file_bytes - data_start) {
      malformed(where, fmt::format("tensor {} ends at data byte {}, the file has {}", printable(t.name), covered, file_bytes - data_start));
    }
    t.begin += data_start;
    t.end += data_start;
  }
  if (covered != file_bytes - data_start)
    malformed(where, fmt::format("tensors cover {} data bytes, the file has {}", covered, file_bytes - data_start));
  apply_octet_dtypes(result, where);
  return result;
}

SafetensorsFile SafetensorsFile::open(const std::filesystem::path& path) {
  SafetensorsFile file;
  file.path_ = path;
  const File opened = File::open_for_read(path, ExitCode::checkpoint);
  file.file_bytes_ = opened.size_bytes();
  uint64_t header_bytes = 0;
  if (file.file_bytes_ < sizeof header_bytes) malformed(path.string(), fmt::format("file has {} bytes, at least 8 expected", file.file_bytes_));
  opened.read_exact(&header_bytes, sizeof header_bytes, 0);
  if (header_bytes > safetensors_max_header_bytes || header_bytes > file.file_bytes_ - sizeof header_bytes) {
    malformed(path.string(), fmt::format("header length {} in a file of {} bytes (at most {} allowed)", header_bytes, file.file_bytes_,
                                         safetensors_max_header_bytes));
  }
  std::string header(static_cast<size_t>(header_bytes), '\0');
  opened.read_exact(header.data(), header.size(), sizeof header_bytes);
  file.header_ = parse_safetensors_header(header, file.file_bytes_, path.string());
  for (size_t i = 0; i < file.header_.tensors.size(); ++i) file.index_.emplace(file.header_.tensors[i].name, i);
  return file;
}

const TensorInfo* SafetensorsFile::find(std::string_view tensor) const {
  const auto it = index_.find(tensor);
  return it == index_.end() ? nullptr : &header_.tensors[it->second];
}

const TensorInfo& SafetensorsFile::at(std::string_view tensor) const {
  const TensorInfo* info = find(tensor);
  if (!info) throw Error(ExitCode::checkpoint, fmt::format("no tensor {}", printable(tensor)), path_.string());
  return *info;
}

void SafetensorsFile::read(std::string_view tensor, Dtype dtype, const Shape& shape, void* out) const {
  const TensorInfo& info = at(tensor);
  if (info.dtype != dtype || info.shape != shape) {
    throw Error(ExitCode::checkpoint,
                fmt::format("tensor {} is {} {}, {} {} is expected", printable(tensor), name(info.dtype), to_string(info.shape), name(dtype),
                            to_string(shape)),
                path_.string());
  }
  File::open_for_read(path_, ExitCode::checkpoint).read_exact(out, static_cast<size_t>(info.end - info.begin), info.begin);
}

uint64_t SafetensorsFile::checksum(std::string_view tensor) const {
  return read_pieces(
      tensor, [](uint64_t, size_t) { return nullptr; }, [](uint64_t, const void*, size_t) {});
}

uint64_t SafetensorsFile::read_pieces(std::string_view tensor, const std::function<void*(uint64_t at, size_t bytes)>& place,
                                      const std::function<void(uint64_t at, const void* data, size_t bytes)>& used) const {
  const TensorInfo& info = at(tensor);
  const File file = File::open_for_read(path_, ExitCode::checkpoint);
  const uint64_t bytes = info.end - info.begin;
  std::vector<char> buffer;
  Hasher hasher;
  for (uint64_t done = 0; done < bytes; done += piece_bytes) {
    const size_t n = static_cast<size_t>(std::min<uint64_t>(piece_bytes, bytes - done));
    void* target = place(done, n);
    if (!target) {
      buffer.resize(std::max(buffer.size(), n));
      target = buffer.data();
    }
    file.read_exact(target, n, info.begin + done);
    hasher.update(target, n);
    used(done, target, n);
  }
  return hasher.digest();
}

}  // namespace octet
