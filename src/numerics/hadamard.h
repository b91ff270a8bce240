// 16-point random Hadamard transform, used before narrow quantization to spread outliers over their neighbours (host and device).
//
//   y = (1/4) H16 (s * x)      H16: Sylvester's matrix, entries +-1; s: sixteen fixed signs
//
// The matrix is orthogonal, so a product over a contraction that both operands were transformed along is unchanged: (HX)^T (HY) = X^T Y.
// The signs are the first 16 bits of the fraction of pi (0x243F, first bit first; 1 is minus): fixed, so that both backends and every
// rank agree, and chosen by nobody. Sources: QuaRot, arXiv 2404.00456, on rotations before 4-bit casts; NVIDIA's NVFP4 pretraining recipe (arXiv
// 2509.25149, 16 x 16 on both operands of the weight gradient).
#pragma once
#include <cstdint>

#include "numerics/bits.h"

namespace octet {

constexpr int hadamard_size = 16;
constexpr uint32_t hadamard_signs = 0x243F;  // bit 15 belongs to element 0

// In place, FP32: signs, four butterfly stages of distance 1, 2, 4, 8 (each sum and difference rounded once), then times 1/4 (exact but for subnormals).
OCTET_HD inline void hadamard16(float* v) {
  for (int i = 0; i < hadamard_size; ++i) {
    if (hadamard_signs >> (15 - i) & 1u) v[i] = -v[i];
  }
  for (int distance = 1; distance < hadamard_size; distance *= 2) {
    for (int i = 0; i < hadamard_size; ++i) {
      if (i & distance) continue;
      const float a = v[i], b = v[i + distance];
      v[i] = a + b;
      v[i + distance] = a - b;
    }
  }
  for (int i = 0; i < hadamard_size; ++i) v[i] *= 0.25f;
}

}  // namespace octet
