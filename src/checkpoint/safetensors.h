// safetensors files: https://huggingface.co/docs/safetensors (format), written byte for byte in the reference writer's order.
//
// File: u64 little-endian header length N; N bytes of JSON padded with spaces to a multiple of 8; tensor bytes, row-major,
// little-endian. Tensors lie in descending order of the format's dtype rank (widest alignment first), then by name.
//
// Dtypes: F32 I32 BF16 F8_E8M0 F8_E4M3 F8_E5M2 U8. The standard's F4 and F6 types are packed; our one-code-a-byte E2M1, E3M2
// and E2M3 are therefore written as U8 with the `__metadata__` entry "octet_dtype:<tensor name>" = "e2m1" | "e3m2" | "e2m3",
// which the reader turns back into the dtype.
//
// Errors: Error(ExitCode::checkpoint) for anything the file or the file system does.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "core/shape.h"

namespace octet {

using SafetensorsMetadata = std::map<std::string, std::string>;

constexpr uint64_t safetensors_max_header_bytes = 100'000'000;  // of the standard

// Calls its argument with the address of a tensor's bytes, which are valid during the call: for tensors that lie on a device or in another form.
using FetchBytes = std::function<void(const std::function<void(const void* data)>& use)>;

struct TensorBytes {
  std::string name;  // UTF-8, unique in the file, not "__metadata__"
  Dtype dtype = Dtype::f32;
  Shape shape;
  const void* data = nullptr;  // may be null only when the tensor has no elements or `fetch` is given
  FetchBytes fetch{};          // instead of data; called once, when the tensor is written
};

// Writes and fsyncs a file (created or truncated in place; the caller sees to atomicity), removes it when that fails.
// Returns the XXH64 (seed 0) of each tensor's bytes in the order given.
std::vector<uint64_t> write_safetensors(const std::filesystem::path& path, const std::vector<TensorBytes>& tensors,
                                        const SafetensorsMetadata& metadata = {});

// Exact size in bytes of the file that write_safetensors would write; reads no tensor data.
uint64_t safetensors_file_bytes(const std::vector<TensorBytes>& tensors, const SafetensorsMetadata& metadata = {});

struct TensorInfo {
  std::string name;
  Dtype dtype = Dtype::f32;
  Shape shape;
  uint64_t begin = 0, end = 0;  // bytes, from the start of the file
};

struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;  // in file order
  SafetensorsMetadata metadata;     // without the octet_dtype entries
};

// Parses and checks the JSON of a file of file_bytes bytes, of which the header takes the first 8 + header.size(): keys, dtypes,
// at most four axes, shape x size == bytes, no hole, no overlap, the last tensor ends where the file does.
SafetensorsHeader parse_safetensors_header(std::string_view header, uint64_t file_bytes, const std::string& where);

// A file whose header has been checked. Holds no descriptor: each read opens the file, so any number may be open.
class SafetensorsFile {
 public:
  static SafetensorsFile open(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  uint64_t file_bytes() const { return file_bytes_; }
  const std::vector<TensorInfo>& tensors() const { return header_.tensors; }
  const SafetensorsMetadata& metadata() const { return header_.metadata; }
  const TensorInfo* find(std::string_view name) const;  // null when absent

  // Copies a tensor's bytes to out; dtype and shape must be the file's.
  void read(std::string_view name, Dtype dtype, const Shape& shape, void* out) const;
  // XXH64 of a tensor's bytes, read in pieces.
  uint64_t checksum(std::string_view name) const;

  // Reads a tensor's bytes once, in order, in pieces of a few MiB (whole elements), and returns their XXH64. Piece [at, at + bytes) of the tensor goes to
  // place(at, bytes), or to a buffer where that is null; used(at, data, bytes) is called when it is there.
  uint64_t read_pieces(std::string_view name, const std::function<void*(uint64_t at, size_t bytes)>& place,
                       const std::function<void(uint64_t at, const void* data, size_t bytes)>& used) const;

 private:
  const TensorInfo& at(std::string_view name) const;

  std::filesystem::path path_;
  uint64_t file_bytes_ = 0;
  SafetensorsHeader header_;
  std::map<std::string, size_t, std::less<>> index_;
};

// Helpers shared with the manifest.
std::optional<Dtype> dtype_from_name(std::string_view name);            // inverse of name(Dtype)
std::optional<Shape> make_shape(const std::vector<int64_t>& dims);      // nullopt: more than four axes, a negative one, or too many elements
std::optional<uint64_t> tensor_bytes(const Shape& shape, Dtype dtype);  // nullopt: does not fit int64_t
uint64_t xxh64(const void* data, size_t bytes);

}  // namespace octet
