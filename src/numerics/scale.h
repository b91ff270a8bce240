// Scale formulas of all recipes (host and device).
//
// q = encode(x * scale), x is recovered as decode(q) * scale_inv, scale_inv = 1 / scale. amax is the maximum of |x| over the
// elements that share the scale, unscaled, or +Inf when any of them is not finite (cpu/convert.h). Divisions are IEEE,
// rounded to nearest, so both backends agree bit for bit.
#pragma once
#include "numerics/formats.h"

namespace octet {

namespace numerics_detail {

// On a device, the intrinsics keep approximate division and fused multiply-add contraction away from these formulas. Flushing
// of subnormals (-use_fast_math, -ftz=true) would still change them: device code is compiled without.
OCTET_HD inline float divide_rn(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fdiv_rn(a, b);
#else
  return a / b;
#endif
}
OCTET_HD inline float multiply_rn(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}

OCTET_HD inline bool is_positive_finite(float x) { return bits_of(x) - 1u < 0x7F7FFFFFu; }

}  // namespace numerics_detail

// The largest power of two not above x, for x > 0 finite; FP32 subnormals keep their leading bit.
OCTET_HD inline float floor_to_pow2(float x) {
  uint32_t u = bits_of(x);
  if (u >= 0x00800000u) return float_from_bits(u & 0xFF800000u);
  while (u & (u - 1u)) u &= u - 1u;
  return float_from_bits(u);
}

// scale = format_max / max(amax, epsilon); with pow2 rounded down to a power of two, so that nothing saturates.
//   amax 0 (and epsilon 0), Inf or NaN: 1. A quotient beyond FP32 becomes overflow_scale (before the pow2 rounding).
//   fp64_divide: the quotient is formed in double and rounded to float.
// tensorwise: epsilon 0, overflow_scale FLT_MAX (Transformer Engine, current scaling).
// rowwise: epsilon 1e-12, pow2, fp64_divide (torchao float8).
// blockwise: epsilon 0, pow2, overflow_scale the largest BF16 (Transformer Engine, block scaling).
OCTET_HD inline float scale_from_amax(float amax, float format_max, bool pow2, float epsilon, float overflow_scale, bool fp64_divide) {
  if (amax < epsilon) amax = epsilon;
  if (!numerics_detail::is_positive_finite(amax)) return 1.0f;
  // A quotient beyond FP32 is caught before the conversion, which is undefined in C++ for doubles out of range.
  float scale;
  if (fp64_divide) {
    const double quotient = static_cast<double>(format_max) / static_cast<double>(amax);
    scale = quotient > 0x1.fffffep127 ? float_from_bits(0x7F800000u) : static_cast<float>(quotient);
  } else {
    scale = numerics_detail::divide_rn(format_max, amax);
  }
  if (!numerics_detail::is_positive_finite(scale)) scale = overflow_scale;
  return pow2 ? floor_to_pow2(scale) : scale;
}

// scale_inv of a scale.
OCTET_HD inline float inverse_scale(float scale) { return numerics_detail::divide_rn(1.0f, scale); }

// Delayed scaling (Transformer Engine): the new scale (format_max * 2^-margin) / window_amax, where window_amax is the
// maximum (or the newest entry) of the amax history. An amax of 0 or one that is not finite keeps old_scale. The result is
// held within [2^-127, overflow_scale], where it has a finite inverse; Transformer Engine has the upper bound only; the
// lower one is met by a positive margin together with an amax near the end of the FP32 range. pow2 rounds down to a power of two.
OCTET_HD inline float delayed_scale(float window_amax, float format_max, int margin, float old_scale, bool pow2 = false,
                                    float overflow_scale = 0x1.fffffep127f) {
  if (!numerics_detail::is_positive_finite(window_amax)) return old_scale;
  // 2^-margin in double: exact for every margin that can matter, and beyond it the bounds below apply.
  const int bounded = margin > 500 ? 500 : margin < -500 ? -500 : margin;
  uint64_t power_bits = static_cast<uint64_t>(1023 - bounded) << 52;
  double power;
  memcpy(&power, &power_bits, 8);
  const double numerator = static_cast<double>(format_max) * power;
  // One rounding of an exact quotient equals the FP32 division whenever format_max * 2^-margin is an FP32 normal, because
  // double has more than twice the digits of float plus two (Figueroa, "When is double rounding innocuous?", 1995).
  const double quotient = numerator / static_cast<double>(window_amax);
  float scale = quotient > 0x1.fffffep127 ? overflow_scale : quotient < 0x1p-127 ? 0x1p-127f : static_cast<float>(quotient);
  return pow2 ? floor_to_pow2(scale) : scale;
}

// NVFP4's two levels (arXiv 2509.25149, section 2): one FP32 scale a tensor, which maps its amax to the largest block scale times the largest element,
// and an E4M3 scale a block. A block is quantized with two_level_multiplier() and recovered with two_level_scale_inv(); a block whose scale
// underflows to 0 becomes zeros. amax rules as in scale_from_amax().
OCTET_HD inline float two_level_tensor_scale(float tensor_amax, float format_max, float epsilon) {
  return scale_from_amax(tensor_amax, format_info(Dtype::e4m3).max_finite * format_max, false, epsilon, 0x1.fffffep127f, false);
}
OCTET_HD inline uint8_t two_level_block_code(float block_amax, float format_max, float tensor_scale) {
  return encode<Dtype::e4m3>(numerics_detail::multiply_rn(numerics_detail::divide_rn(block_amax, format_max), tensor_scale));
}
OCTET_HD inline float two_level_multiplier(uint8_t block_code, float tensor_scale) {
  return block_code == 0 ? 0.0f : numerics_detail::divide_rn(tensor_scale, decode<Dtype::e4m3>(block_code));
}
OCTET_HD inline float two_level_scale_inv(uint8_t block_code, float tensor_scale) {
  return numerics_detail::divide_rn(decode<Dtype::e4m3>(block_code), tensor_scale);
}

// The two levels as cuBLASLt reads them: an E4M3 code a block and one FP32 factor a tensor, scale_inv = code * factor. An image keeps fl32(code / tensor scale) alone, so the
// factor is fitted, to any part of a tensor. Ratios of the scales are those of their codes, so the largest scale may stand for one of eight codes, m / 8 times the largest power of
// two that E4M3 has with it, m = 8 to 15. A candidate fits when all scales are codes times its factor, and all that fit give the same products up to FP32 rounding. The first
// candidate is 448, the code of the tensor's largest block.
constexpr int two_level_candidates = 8;
OCTET_HD inline float two_level_top_code(int candidate) { return candidate == 7 ? 240.0f : 448.0f - 32.0f * static_cast<float>(candidate); }   // m = 15: 480 is beyond E4M3
// The code of a block, before rounding. largest: scale_inv of all blocks.
OCTET_HD inline float two_level_ratio(float scale_inv, float largest, int candidate) {
  return largest == 0.0f ? 0.0f : numerics_detail::multiply_rn(numerics_detail::divide_rn(scale_inv, largest), two_level_top_code(candidate));
}
// Bit c: candidate c does not fit. Ratios lie within 2^-12 of a code (FP32 subnormals; others within 2^-22), or are a quotient of small integers, at least 1 / 225 away from one.
OCTET_HD inline unsigned two_level_misfits(float scale_inv, float largest) {
  unsigned misfits = 0;
  for (int c = 0; c < two_level_candidates; ++c) {
    const float ratio = two_level_ratio(scale_inv, largest, c), difference = decode<Dtype::e4m3>(encode<Dtype::e4m3>(ratio)) - ratio;
    if ((difference < 0 ? -difference : difference) > ratio * 0x1p-11f) misfits |= 1u << c;
  }
  return misfits;
}
// The first without a misfit; of scales that two_level_scale_inv() made there is one.
OCTET_HD inline int two_level_candidate(unsigned misfits) {
  int c = 0;
  while (c < two_level_candidates - 1 && (misfits >> c & 1u)) ++c;
  return c;
}

// E8M0 code of an MX block (32 elements): 2^ceil(log2(amax / max_finite)) ("RCEIL"; Transformer Engine and cuBLAS;
// arXiv 2506.08027 on why rounding down as in OCP Microscaling 1.0 diverges). Computed as amax * fl(1 / max_finite), which
// gives the code of the division for every mantissa. amax 0: 0x00; Inf: 0xFE; NaN: 0xFF. The block is then quantized with
// e8m0_reciprocal(code).
OCTET_HD inline uint8_t mx_scale_code(float amax, Dtype format) {
  return e8m0_encode_rp(numerics_detail::multiply_rn(amax, numerics_detail::divide_rn(1.0f, format_info(format).max_finite)));
}

}  // namespace octet
