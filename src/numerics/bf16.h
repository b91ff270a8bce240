// BF16 storage type and conversions (host and device). RNE unless the name says otherwise; NaN becomes the quiet NaN 0x7FFF,
// as __float2bfloat16_rn does.
#pragma once
#include "numerics/bits.h"

namespace octet {

struct bf16 {
  uint16_t bits;
};

OCTET_HD inline float to_float(bf16 x) { return float_from_bits(static_cast<uint32_t>(x.bits) << 16); }
OCTET_HD inline float to_float(float x) { return x; }

OCTET_HD inline bf16 to_bf16(float x) {
  const uint32_t u = bits_of(x);
  const uint32_t rounded = (u + 0x7FFFu + ((u >> 16) & 1u)) >> 16;
  return {static_cast<uint16_t>((u & 0x7FFFFFFFu) > 0x7F800000u ? 0x7FFFu : rounded)};
}

// Adds 16 random bits below the kept mantissa, then truncates: E[result] = x for |x| up to the largest BF16; beyond it finite x becomes that, never Inf.
OCTET_HD inline bf16 to_bf16_stochastic(float x, uint32_t random) {
  const uint32_t u = bits_of(x);
  if ((u & 0x7F800000u) == 0x7F800000u) return to_bf16(x);
  const uint32_t rounded = u + (random & 0xFFFFu);
  return {static_cast<uint16_t>(((rounded & 0x7F800000u) == 0x7F800000u ? u : rounded) >> 16)};
}

// Store a float as the element type of a tensor: the rounding point of an operator's output.
template <class T>
OCTET_HD inline T from_float(float x);
template <>
OCTET_HD inline float from_float<float>(float x) { return x; }
template <>
OCTET_HD inline bf16 from_float<bf16>(float x) { return to_bf16(x); }

}  // namespace octet
