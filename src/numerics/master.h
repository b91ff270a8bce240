// FP32 master weights as two 16-bit halves: the BF16 weight that the model computes with (the master rounded to nearest even) and the master's lower 16 bits.
//
// The lower bits tell whether rounding went up, so the upper half can be had back: all masters but one in 2^17 are kept exactly. The one: a lower half of
// 0x8000 below an even upper half. It rounds down to the BF16 that its odd neighbour's tie rounds up to, with the same lower bits, and 16 bits cannot tell the two
// apart. So no master ever holds such a value: every update moves it by one FP32 unit towards zero (resolve_tie), in whichever form masters are kept. Training
// with FP32 masters and with halves gives the same bits.
#pragma once
#include "numerics/bf16.h"

namespace octet {

struct SplitMaster {
  bf16 weight;
  uint16_t remainder;
};

OCTET_HD inline float resolve_tie(float w) {
  const uint32_t u = bits_of(w);
  return (u & 0x1FFFFu) == 0x8000u ? float_from_bits(u - 1) : w;
}

// w: resolved. Of a NaN nothing but that it is one: CPU and GPU make NaNs of other bits.
OCTET_HD inline SplitMaster split_master(float w) { return {to_bf16(w), static_cast<uint16_t>(w != w ? 0u : bits_of(w) & 0xFFFFu)}; }

OCTET_HD inline float join_master(bf16 weight, uint16_t remainder) {
  const uint32_t upper = static_cast<uint32_t>(weight.bits) - (remainder >= 0x8000u ? 1u : 0u);
  return float_from_bits(upper << 16 | remainder);
}

}  // namespace octet
