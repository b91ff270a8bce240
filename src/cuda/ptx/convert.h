// Conversion instructions. Two values a call, the first in the low half. NaN becomes 0x7FFF (BF16), 0x7F (E4M3, E5M2), as in numerics/.
#pragma once
#include <cstdint>

namespace octet::ptx {

__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
// To nearest, ties to even, saturating.
__device__ __forceinline__ uint16_t pack_e4m3(float low, float high) {
  uint16_t r;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(r) : "f"(high), "f"(low));
  return r;
}
__device__ __forceinline__ uint16_t pack_e5m2(float low, float high) {
  uint16_t r;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(r) : "f"(high), "f"(low));
  return r;
}

// Larger of each pair of unsigned 16-bit halves.
__device__ __forceinline__ uint32_t max_u16x2(uint32_t a, uint32_t b) { return __vmaxu2(a, b); }

}  // namespace octet::ptx
