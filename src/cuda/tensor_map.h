// Tensors as Hopper's copy engine (TMA) sees them: what a box of rows and columns of global memory is, by 128 bytes of opaque description that a kernel takes as
// a __grid_constant__ parameter. CUDA driver API, "Tensor Map Object Management".
#pragma once
#include <array>
#include <cstdint>

namespace octet::cuda {

struct alignas(64) TensorMap {
  uint64_t words[16];
};

// Three dimensions, the first one contiguous. Boxes arrive in shared memory as rows of 128 bytes with the 128-byte swizzle (ptx/matrix_descriptor.h).
struct TiledTensor {
  const void* data = nullptr;                  // 16-byte aligned
  int element_bytes = 2;                       // 1 or 2
  std::array<uint64_t, 3> extent{};            // elements
  std::array<uint64_t, 2> stride_bytes{};      // of the second and third dimension; multiples of 16
  std::array<uint32_t, 3> box{};               // elements; the first is 128 bytes, the others at most 256
};

// Throws Error(device) where the driver refuses it.
TensorMap make_tensor_map(const TiledTensor& t);

}  // namespace octet::cuda

namespace octet::ptx {
using cuda::TensorMap;
}
