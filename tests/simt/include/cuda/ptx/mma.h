// src/cuda/ptx/mma.h in C++. Products are exact in FP32 and summed in index order: the tensor core sums otherwise, so results agree to rounding.
#pragma once
#include <cuda_runtime.h>

#include "numerics/bf16.h"

namespace octet::ptx {

inline float bf16_half(uint32_t word, int half) { return float_from_bits(half ? word & 0xFFFF0000u : word << 16); }

inline void mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  const uint32_t mine[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
  simt::publish(mine, 6, -1);
  const int group = simt::lane() / 4, in_group = simt::lane() % 4;
  // A: registers 0, 1 hold k 0..7 of rows 0..7 and 8..15; 2, 3 the same of k 8..15. B: register 0 holds k 0..7, register 1 k 8..15. A word holds two k.
  const uint32_t *from_a[4], *from_b[2][4];
  for (int i = 0; i < 4; ++i) {
    from_a[i] = simt::publish(nullptr, 6, group * 4 + i);
    for (int column = 0; column < 2; ++column) from_b[column][i] = simt::publish(nullptr, 6, (in_group * 2 + column) * 4 + i) + 4;
  }
  for (int e = 0; e < 4; ++e) {
    float sum = d[e];
    for (int k = 0; k < 16; ++k) {
      const int word = k % 8 / 2, upper = k / 8;
      sum = fmaf(bf16_half(from_a[word][e / 2 + upper * 2], k % 2), bf16_half(from_b[e % 2][word][upper], k % 2), sum);
    }
    d[e] = sum;
  }
  simt::warp_barrier();
}

// Lane l gives the address of row l % 8 of matrix l / 8.
inline void load_matrix_x4(uint32_t (&r)[4], const void* row) {
  const uint64_t address = reinterpret_cast<uint64_t>(row);
  for (int m = 0; m < 4; ++m) {
    const auto* from = reinterpret_cast<const uint32_t*>(simt::exchange(address, m * 8 + simt::lane() / 4));
    r[m] = from[simt::lane() % 4];
  }
}
inline void load_matrix_x4_transposed(uint32_t (&r)[4], const void* row) {
  const uint64_t address = reinterpret_cast<uint64_t>(row);
  for (int m = 0; m < 4; ++m) {
    uint32_t word = 0;
    for (int half = 0; half < 2; ++half) {
      const auto* from = reinterpret_cast<const uint16_t*>(simt::exchange(address, m * 8 + simt::lane() % 4 * 2 + half));
      word |= static_cast<uint32_t>(from[simt::lane() / 4]) << (16 * half);
    }
    r[m] = word;
  }
}

inline float exp2_approx(float x) { return exp2f(x); }
}  // namespace octet::ptx
