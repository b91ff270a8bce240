// Narrow floating-point formats: facts, encoding, decoding (host and device; this is the one place where they are defined).
//
//   format  S/E/M  bias  max finite   Inf, NaN                        source
//   e4m3    1/4/3   7    448          no Inf; NaN 0x7F, 0xFF          Micikevicius et al., arXiv 2209.05433; OCP OFP8 1.0
//   e5m2    1/5/2  15    57344        Inf 0x7C, 0xFC; NaN above it    the same
//   e3m2    1/3/2   3    28           none                            OCP Microscaling 1.0
//   e2m3    1/2/3   1    7.5          none                            OCP Microscaling 1.0
//   e2m1    1/2/1   1    6            none                            OCP Microscaling 1.0
//   e8m0    0/8/0  127   2^127        NaN 0xFF; no zero, no sign      OCP Microscaling 1.0 (scales of MX blocks)
//
// Conversions follow CUDA's cvt.rn.satfinite and the host functions of cuda_fp8.h, cuda_fp6.h and cuda_fp4.h, bit for bit:
// out of range and +-Inf become +-max finite, so an overflow leaves no trace in the codes and must be caught before; NaN
// becomes 0x7F (e4m3, e5m2) or +max (e3m2, e2m3, e2m1), the sign is lost; -0 stays -0. CUDA's non-saturating variants, not
// used for training, differ above the largest finite value only: e4m3 gives NaN beyond 464, e5m2 Inf from 61440 on.
//
// Codes of less than a byte stand in the low bits, sign highest; the unused bits are 0 in results and ignored in arguments.
// All rounding is done on integers, so neither the FPU's state nor fused multiply-add contraction can change a result.
#pragma once
#include "core/dtype.h"
#include "numerics/bits.h"

namespace octet {

struct FormatInfo {
  int exponent_bits = 0, mantissa_bits = 0, bias = 0;
  int emax = 0;               // exponent of max_finite
  int emin = 0;               // exponent of min_normal
  float max_finite = 0;
  float min_normal = 0;
  float min_subnormal = 0;    // spacing of the subnormal grid
  uint8_t max_code = 0;       // code of +max_finite
  uint8_t nan_code = 0;       // what encode gives for NaN
  bool is_signed = false, has_inf = false, has_nan = false;
};

// Facts of a narrow format; all zero for f32, bf16, i32 and u8.
OCTET_HD constexpr FormatInfo format_info(Dtype f) {
  switch (f) {
    case Dtype::e4m3: return {4, 3, 7, 8, -6, 448.0f, 0x1p-6f, 0x1p-9f, 0x7E, 0x7F, true, false, true};
    case Dtype::e5m2: return {5, 2, 15, 15, -14, 57344.0f, 0x1p-14f, 0x1p-16f, 0x7B, 0x7F, true, true, true};
    case Dtype::e3m2: return {3, 2, 3, 4, -2, 28.0f, 0x1p-2f, 0x1p-4f, 0x1F, 0x1F, true, false, false};
    case Dtype::e2m3: return {2, 3, 1, 2, 0, 7.5f, 1.0f, 0x1p-3f, 0x1F, 0x1F, true, false, false};
    case Dtype::e2m1: return {2, 1, 1, 2, 0, 6.0f, 1.0f, 0x1p-1f, 0x07, 0x07, true, false, false};
    case Dtype::e8m0: return {8, 0, 127, 127, -127, 0x1p127f, 0x1p-127f, 0x1p-127f, 0xFE, 0xFF, false, false, true};
    default: return {};
  }
}

// Whether f is one of the five signed formats that tensors are quantized to.
OCTET_HD constexpr bool is_element_format(Dtype f) {
  return f == Dtype::e4m3 || f == Dtype::e5m2 || f == Dtype::e3m2 || f == Dtype::e2m3 || f == Dtype::e2m1;
}

namespace numerics_detail {

// |x| truncated to the grid of F, and what was cut off as a fraction of one grid step in units of 2^-32. The fraction is
// exact except for |x| far below the smallest subnormal, where its own tail below 2^-32 is dropped.
struct Truncated {
  uint32_t magnitude;
  uint32_t fraction;
};

template <Dtype F>
OCTET_HD inline Truncated truncate_to_grid(uint32_t abs_bits) {
  constexpr FormatInfo f = format_info(F);
  constexpr uint32_t min_normal_bits = static_cast<uint32_t>(127 + f.emin) << 23;
  if (abs_bits >= min_normal_bits) {
    constexpr int dropped = 23 - f.mantissa_bits;
    constexpr uint32_t rebias = static_cast<uint32_t>(127 - f.bias) << f.mantissa_bits;
    return {(abs_bits >> dropped) - rebias, abs_bits << (32 - dropped)};
  }
  const int exponent = abs_bits < 0x00800000u ? 1 : static_cast<int>(abs_bits >> 23);
  const uint32_t significand = (abs_bits & 0x007FFFFFu) | (abs_bits < 0x00800000u ? 0u : 0x00800000u);
  // |x| = significand * 2^(exponent - 150) and the grid step is 2^(emin - mantissa_bits).
  const int shift = f.emin - f.mantissa_bits - exponent + 150;
  const uint64_t fixed = shift < 56 ? (static_cast<uint64_t>(significand) << 32) >> shift : 0;
  return {static_cast<uint32_t>(fixed >> 32), static_cast<uint32_t>(fixed)};
}

template <Dtype F>
OCTET_HD inline uint8_t finish_code(uint32_t magnitude, uint32_t sign) {
  constexpr FormatInfo f = format_info(F);
  const uint32_t saturated = magnitude > f.max_code ? f.max_code : magnitude;
  return static_cast<uint8_t>(saturated | sign << (f.exponent_bits + f.mantissa_bits));
}

}  // namespace numerics_detail

// Nearest value of F, ties to the even code, saturating.
template <Dtype F>
OCTET_HD inline uint8_t encode(float x) {
  static_assert(is_element_format(F), "encode: not a signed narrow format");
  const uint32_t u = bits_of(x), abs_bits = u & 0x7FFFFFFFu;
  if (abs_bits > 0x7F800000u) return format_info(F).nan_code;
  const auto t = numerics_detail::truncate_to_grid<F>(abs_bits);
  const bool up = t.fraction > 0x80000000u || (t.fraction == 0x80000000u && (t.magnitude & 1u));
  return numerics_detail::finish_code<F>(t.magnitude + (up ? 1u : 0u), u >> 31);
}

// One of the two neighbours of x in F, the upper one (in magnitude) with probability (|x| - lower) / (upper - lower), the
// subnormal grid included: E[decode(result)] = x for |x| <= max finite and `random` uniform over 32 bits. Exact values stay,
// values beyond the range saturate, NaN as in encode. Probabilities are multiples of 2^-32.
template <Dtype F>
OCTET_HD inline uint8_t encode_stochastic(float x, uint32_t random) {
  static_assert(is_element_format(F), "encode_stochastic: not a signed narrow format");
  const uint32_t u = bits_of(x), abs_bits = u & 0x7FFFFFFFu;
  if (abs_bits > 0x7F800000u) return format_info(F).nan_code;
  const auto t = numerics_detail::truncate_to_grid<F>(abs_bits);
  return numerics_detail::finish_code<F>(t.magnitude + (random < t.fraction ? 1u : 0u), u >> 31);
}

// Value of a code; exact. NaN codes give a quiet NaN with the code's sign.
template <Dtype F>
OCTET_HD inline float decode(uint8_t code) {
  static_assert(is_element_format(F), "decode: not a signed narrow format");
  constexpr FormatInfo f = format_info(F);
  constexpr int sign_shift = f.exponent_bits + f.mantissa_bits;
  const uint32_t sign = (static_cast<uint32_t>(code) >> sign_shift & 1u) << 31;
  const uint32_t magnitude = code & ((1u << sign_shift) - 1u);
  if constexpr (f.has_nan) {
    if (magnitude > f.max_code) return float_from_bits(sign | (f.has_inf && magnitude == f.max_code + 1u ? 0x7F800000u : 0x7FC00000u));
  }
  if (magnitude >> f.mantissa_bits == 0) return float_from_bits(sign | bits_of(static_cast<float>(magnitude) * f.min_subnormal));
  return float_from_bits(sign | ((magnitude << (23 - f.mantissa_bits)) + (static_cast<uint32_t>(127 - f.bias) << 23)));
}

// E8M0 exponent of |x|, rounded toward zero: 2^floor(log2 |x|). Saturates to [2^-127, 2^127]; 0 gives 0x00, NaN 0xFF.
OCTET_HD inline uint8_t e8m0_encode_rz(float x) {
  const uint32_t a = bits_of(x) & 0x7FFFFFFFu;
  if (a > 0x7F800000u) return 0xFF;
  return static_cast<uint8_t>(a >= 0x7F800000u ? 0xFEu : a >> 23);
}

// The same rounded up: 2^ceil(log2 |x|). A subnormal with fraction bits up to 0x400000 is at most 2^-127, code 0.
OCTET_HD inline uint8_t e8m0_encode_rp(float x) {
  const uint32_t a = bits_of(x) & 0x7FFFFFFFu;
  if (a > 0x7F800000u) return 0xFF;
  const uint32_t exponent = a >> 23, fraction = a & 0x007FFFFFu;
  const bool up = exponent == 0 ? fraction > 0x00400000u : fraction != 0;
  const uint32_t code = exponent + (up ? 1u : 0u);
  return static_cast<uint8_t>(code > 0xFEu ? 0xFEu : code);
}

// 2^(code - 127). Code 0 is the FP32 subnormal 2^-127, which shifting the code into the exponent would turn into 0.
OCTET_HD inline float e8m0_decode(uint8_t code) {
  if (code == 0xFF) return float_from_bits(0x7FC00000u);
  return float_from_bits(code == 0 ? 0x00400000u : static_cast<uint32_t>(code) << 23);
}

// 2^(127 - code), the multiplier that quantizes a block of that scale; exact, 254 gives the subnormal 2^-127.
OCTET_HD inline float e8m0_reciprocal(uint8_t code) {
  if (code == 0xFF) return float_from_bits(0x7FC00000u);
  return float_from_bits(code == 0xFE ? 0x00400000u : (254u - code) << 23);
}

// The same with the format chosen at run time. e8m0 is encoded rounding up. A Dtype that is not a narrow format gives
// poison that shows: code 0xFF, value NaN.
OCTET_HD inline uint8_t encode(Dtype f, float x) {
  switch (f) {
    case Dtype::e4m3: return encode<Dtype::e4m3>(x);
    case Dtype::e5m2: return encode<Dtype::e5m2>(x);
    case Dtype::e3m2: return encode<Dtype::e3m2>(x);
    case Dtype::e2m3: return encode<Dtype::e2m3>(x);
    case Dtype::e2m1: return encode<Dtype::e2m1>(x);
    case Dtype::e8m0: return e8m0_encode_rp(x);
    default: return 0xFF;
  }
}

// e8m0 has no stochastic rounding: poison as for a wide Dtype.
OCTET_HD inline uint8_t encode_stochastic(Dtype f, float x, uint32_t random) {
  switch (f) {
    case Dtype::e4m3: return encode_stochastic<Dtype::e4m3>(x, random);
    case Dtype::e5m2: return encode_stochastic<Dtype::e5m2>(x, random);
    case Dtype::e3m2: return encode_stochastic<Dtype::e3m2>(x, random);
    case Dtype::e2m3: return encode_stochastic<Dtype::e2m3>(x, random);
    case Dtype::e2m1: return encode_stochastic<Dtype::e2m1>(x, random);
    default: return 0xFF;
  }
}

OCTET_HD inline float decode(Dtype f, uint8_t code) {
  switch (f) {
    case Dtype::e4m3: return decode<Dtype::e4m3>(code);
    case Dtype::e5m2: return decode<Dtype::e5m2>(code);
    case Dtype::e3m2: return decode<Dtype::e3m2>(code);
    case Dtype::e2m3: return decode<Dtype::e2m3>(code);
    case Dtype::e2m1: return decode<Dtype::e2m1>(code);
    case Dtype::e8m0: return e8m0_decode(code);
    default: return float_from_bits(0x7FC00000u);
  }
}

}  // namespace octet
