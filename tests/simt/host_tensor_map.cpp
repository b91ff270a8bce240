#include "host_tensor_map.h"

#include <cstring>
#include <stdexcept>

namespace octet::cuda {

TensorMap make_tensor_map(const TiledTensor& t) {
  // What the driver refuses.
  const bool fits = reinterpret_cast<uintptr_t>(t.data) % 16 == 0 && (t.element_bytes == 1 || t.element_bytes == 2) && t.stride_bytes[0] % 16 == 0 && t.stride_bytes[1] % 16 == 0 &&
                    t.box[0] * static_cast<uint32_t>(t.element_bytes) == 128 && t.box[1] <= 256 && t.box[2] <= 256;
  if (!fits) throw std::runtime_error("simt: not a tensor that boxes can be copied from");
  TensorMap map{};
  static_assert(sizeof t <= sizeof map);
  memcpy(&map, &t, sizeof t);
  return map;
}

}  // namespace octet::cuda

namespace simt {

int copy_box(std::byte* to, const std::byte* shared, const octet::cuda::TensorMap& map, int x, int y, int z) {
  octet::cuda::TiledTensor t;
  memcpy(static_cast<void*>(&t), &map, sizeof t);
  const auto bytes = static_cast<size_t>(t.element_bytes);
  const auto inside = [](int64_t at, uint64_t extent) { return at >= 0 && static_cast<uint64_t>(at) < extent; };
  size_t offset = static_cast<size_t>(to - shared);
  if (offset % 128 != 0) throw std::runtime_error("simt: a box must begin at a multiple of 128 bytes");
  for (uint32_t k = 0; k < t.box[2]; ++k) {
    for (uint32_t j = 0; j < t.box[1]; ++j) {
      for (uint32_t i = 0; i < t.box[0]; ++i, offset += bytes) {
        const int64_t column = x + static_cast<int64_t>(i), row = y + static_cast<int64_t>(j), plane = z + static_cast<int64_t>(k);
        std::byte* at = const_cast<std::byte*>(shared) + (offset ^ (offset >> 7 & 7) << 4);
        if (inside(column, t.extent[0]) && inside(row, t.extent[1]) && inside(plane, t.extent[2])) {
          memcpy(at, static_cast<const std::byte*>(t.data) + static_cast<size_t>(plane) * t.stride_bytes[1] + static_cast<size_t>(row) * t.stride_bytes[0] + static_cast<size_t>(column) * bytes, bytes);
        } else {
          memset(at, 0, bytes);
        }
      }
    }
  }
  return static_cast<int>(t.box[0] * t.box[1] * t.box[2] * bytes);
}

}  // namespace simt
