// Bit model of the FP8 tensor-core accumulator of Hopper (wgmma with FP32 accumulators), host and device.
//
// One step adds up to 32 products and the incoming accumulator as one sum of 33 terms: every term is aligned to the largest
// exponent among them, cut to 13 fractional bits (towards zero), the integers are added exactly, and the result is cut again
// to a number with 8 exponent and 13 fraction bits. The exponent of a product is the sum of its factors' exponents; the
// product of the significands (in [1, 4)) is not renormalized first. Subnormal factors have the exponent of the smallest normal.
// Source: MMA-Sim, arXiv 2511.10909, whose model was checked against the hardware; the loss it explains is described in
// DeepSeek-V3, arXiv 2412.19437, section 3.3.2 ("about 14 bits").
//
// Limits: e4m3 and e5m2 factors only. It does not describe Ada's or Blackwell's units, BF16 products (25 fractional bits),
// nor library GEMMs whose promotion interval and split of K are unknown. Non-finite terms follow IEEE; NaN payloads do not.
#pragma once
#include "numerics/formats.h"

namespace octet {

inline constexpr int tensor_core_k = 32;              // products in one step
inline constexpr int tensor_core_fraction_bits = 13;

namespace numerics_detail {

// x = sign * significand * 2^(exponent - 23), significand < 2^24; exponents are held at or above emin.
struct Unpacked {
  int32_t significand;   // with the sign of x
  int exponent;
};

OCTET_HD inline Unpacked unpack(float x, int emin) {
  const uint32_t u = bits_of(x);
  int exponent = static_cast<int>(u >> 23 & 0xFFu);
  uint32_t significand = u & 0x007FFFFFu;
  if (exponent == 0) {
    exponent = 1;
  } else {
    significand |= 0x00800000u;
  }
  exponent -= 127;
  if (exponent < emin) {  // an FP8 subnormal is a multiple of 2^(emin - 3): the shift drops only zeros
    significand = emin - exponent < 32 ? significand >> (emin - exponent) : 0u;
    exponent = emin;
  }
  const int32_t s = static_cast<int32_t>(significand);
  return {u >> 31 ? -s : s, exponent};
}

// trunc(value / 2^shift), towards zero, for shift >= 0.
OCTET_HD inline int64_t shift_towards_zero(int64_t value, int shift) {
  const int64_t magnitude = value < 0 ? -value : value;
  const int64_t shifted = shift < 63 ? magnitude >> shift : 0;
  return value < 0 ? -shifted : shifted;
}

// sum * 2^exponent, cut to 14 significant bits towards zero (fewer below the FP32 normal range, Inf above it).
OCTET_HD inline float pack_truncated(int64_t sum, int exponent) {
  if (sum == 0) return 0.0f;
  uint64_t magnitude = sum < 0 ? static_cast<uint64_t>(-sum) : static_cast<uint64_t>(sum);
  while (magnitude >> (tensor_core_fraction_bits + 1)) {
    magnitude >>= 1;
    ++exponent;
  }
  while (!(magnitude >> tensor_core_fraction_bits) && exponent > -126 - tensor_core_fraction_bits) {
    magnitude <<= 1;
    --exponent;
  }
  const uint32_t sign = sum < 0 ? 0x80000000u : 0u;
  const uint32_t significand = static_cast<uint32_t>(magnitude) << (23 - tensor_core_fraction_bits);
  const int biased = exponent + tensor_core_fraction_bits + 127;
  if (biased >= 255) return float_from_bits(sign | 0x7F800000u);
  if (significand < 0x00800000u) return float_from_bits(sign | significand);  // subnormal: exponent field 0 means 2^-126
  return float_from_bits(sign | ((static_cast<uint32_t>(biased) << 23) + (significand - 0x00800000u)));
}

OCTET_HD inline bool is_finite(float x) { return (bits_of(x) & 0x7F800000u) != 0x7F800000u; }

}  // namespace numerics_detail

// One tensor-core instruction's sum: acc + a[0] * b[0] + ... + a[n-1] * b[n-1], n <= 32 (fewer: the rest are zeros).
// a and b hold decoded values of the formats fa and fb.
OCTET_HD inline float tensor_core_step(const float* a, Dtype fa, const float* b, Dtype fb, int n, float acc) {
  namespace detail = numerics_detail;
  const int emin_a = format_info(fa).emin, emin_b = format_info(fb).emin;
  bool finite = detail::is_finite(acc);
  float plain = acc;  // shows which non-finite value the sum has; unused otherwise
  constexpr int none = -1000;
  int largest = none;
  for (int i = 0; i < n; ++i) {
    finite = finite && detail::is_finite(a[i]) && detail::is_finite(b[i]);
    plain += a[i] * b[i];
    if (a[i] == 0.0f || b[i] == 0.0f) continue;
    const int exponent = detail::unpack(a[i], emin_a).exponent + detail::unpack(b[i], emin_b).exponent;
    largest = exponent > largest ? exponent : largest;
  }
  if (!finite) return plain;
  const detail::Unpacked c = detail::unpack(acc, -126);
  if (c.significand != 0 && c.exponent > largest) largest = c.exponent;
  if (largest == none) return 0.0f;

  constexpr int kept = tensor_core_fraction_bits;
  int64_t sum = detail::shift_towards_zero(c.significand, 23 - kept + (c.significand ? largest - c.exponent : 0));
  for (int i = 0; i < n; ++i) {
    const detail::Unpacked p = detail::unpack(a[i], emin_a), q = detail::unpack(b[i], emin_b);
    if (p.significand == 0 || q.significand == 0) continue;
    const int64_t product = static_cast<int64_t>(p.significand) * q.significand;
    sum += detail::shift_towards_zero(product, 46 - kept + (largest - p.exponent - q.exponent));
  }
  return detail::pack_truncated(sum, largest - kept);
}

// A chain of steps over k products: what the tensor core alone gives ("fast accumulation").
OCTET_HD inline float tensor_core_chain(const float* a, Dtype fa, const float* b, Dtype fb, int64_t k, float acc) {
  for (int64_t i = 0; i < k; i += tensor_core_k) {
    const int n = k - i < tensor_core_k ? static_cast<int>(k - i) : tensor_core_k;
    acc = tensor_core_step(a + i, fa, b + i, fb, n, acc);
  }
  return acc;
}

// The same, promoted: every `interval` products (a multiple of 32; 128 in training) the chain is added to an FP32 sum and
// begins anew at zero ("accurate accumulation").
OCTET_HD inline float tensor_core_promoted(const float* a, Dtype fa, const float* b, Dtype fb, int64_t k, int64_t interval) {
  float sum = 0.0f;
  for (int64_t i = 0; i < k; i += interval) {
    sum += tensor_core_chain(a + i, fa, b + i, fb, k - i < interval ? k - i : interval, 0.0f);
  }
  return sum;
}

}  // namespace octet
