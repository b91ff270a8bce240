// The emulated machine's tensor maps (cuda/tensor_map.h): their words hold the description itself.
#pragma once
#include <cstddef>

#include "cuda/tensor_map.h"

namespace simt {

// Copies the box at (x, y, z) to `to`, with the 128-byte swizzle of addresses within shared memory, which begins at `shared`. Returns its bytes.
int copy_box(std::byte* to, const std::byte* shared, const octet::cuda::TensorMap& map, int x, int y, int z);

}  // namespace simt
