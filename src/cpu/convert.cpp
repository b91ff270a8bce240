#include "cpu/convert.h"

#include <immintrin.h>

#include <algorithm>

#include "core/check.h"
#include "numerics/formats.h"

namespace octet::cpu {
namespace {

constexpr int kLanes = 8;

__m256i splat(uint32_t bits) { return _mm256_set1_epi32(static_cast<int>(bits)); }

__m256 load8(const float* x) { return _mm256_loadu_ps(x); }
__m256 load8(const bf16* x) {
  const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}
__m256i load8_bits(const uint8_t* q) { return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(q))); }

// Codes of eight products, one in each 32-bit lane. The same integer rounding as encode<F>, except that below the normal
// range the FPU does it: adding 2^23 grid steps leaves no bits below the grid.
template <Dtype F>
__m256i encode8(__m256 x) {
  constexpr FormatInfo f = format_info(F);
  constexpr int dropped = 23 - f.mantissa_bits;
  constexpr uint32_t rebias = static_cast<uint32_t>(127 - f.bias) << f.mantissa_bits;
  const __m256 sign_bit = _mm256_castsi256_ps(splat(0x80000000u));
  const __m256 nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
  const __m256 magnitude = _mm256_min_ps(_mm256_andnot_ps(sign_bit, x), _mm256_set1_ps(f.max_finite));
  const __m256i bits = _mm256_castps_si256(magnitude);

  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, dropped), splat(1));
  const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, splat((1u << (dropped - 1)) - 1u)), odd);
  const __m256i normal = _mm256_sub_epi32(_mm256_srli_epi32(rounded, dropped), splat(rebias));

  const __m256 grid = _mm256_set1_ps(f.min_subnormal * 0x1p23f);
  const __m256i subnormal = _mm256_sub_epi32(_mm256_castps_si256(_mm256_add_ps(magnitude, grid)), _mm256_castps_si256(grid));

  const __m256 is_normal = _mm256_cmp_ps(magnitude, _mm256_set1_ps(f.min_normal), _CMP_GE_OQ);
  const __m256i code = _mm256_blendv_epi8(subnormal, normal, _mm256_castps_si256(is_normal));
  const __m256i sign = _mm256_and_si256(_mm256_srli_epi32(_mm256_castps_si256(x), 31 - f.exponent_bits - f.mantissa_bits),
                                        splat(1u << (f.exponent_bits + f.mantissa_bits)));
  return _mm256_blendv_epi8(_mm256_or_si256(code, sign), splat(f.nan_code), _mm256_castps_si256(nan));
}

void store32(__m256i a, __m256i b, __m256i c, __m256i d, uint8_t* q) {
  const __m256i words = _mm256_packus_epi16(_mm256_packus_epi32(a, b), _mm256_packus_epi32(c, d));
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);  // packing works on 128-bit halves
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(q), _mm256_permutevar8x32_epi32(words, order));
}

void store8(__m256i a, uint8_t* q) {
  const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(q), _mm_packus_epi16(words, words));
}

// Scale sources: one for all elements, or one each.
struct OneScale {
  float value;
  __m256 at8(int64_t) const { return _mm256_set1_ps(value); }
  float at(int64_t) const { return value; }
};
struct ScaleArray {
  const float* values;
  __m256 at8(int64_t i) const { return load8(values + i); }
  float at(int64_t i) const { return values[i]; }
};

template <Dtype F, class T, class Scale>
void encode_loop(const T* x, Scale scale, uint8_t* q, int64_t n) {
  const auto codes = [&](int64_t i) { return encode8<F>(_mm256_mul_ps(load8(x + i), scale.at8(i))); };
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) store32(codes(i), codes(i + 8), codes(i + 16), codes(i + 24), q + i);
  for (; i + kLanes <= n; i += kLanes) store8(codes(i), q + i);
  for (; i < n; ++i) q[i] = encode<F>(to_float(x[i]) * scale.at(i));
}

template <Dtype F>
__m256 decode8(__m256i code) {
  constexpr FormatInfo f = format_info(F);
  constexpr int sign_shift = f.exponent_bits + f.mantissa_bits;
  const __m256i magnitude = _mm256_and_si256(code, splat((1u << sign_shift) - 1u));
  const __m256i sign = _mm256_and_si256(_mm256_slli_epi32(code, 31 - sign_shift), splat(0x80000000u));
  const __m256i normal = _mm256_add_epi32(_mm256_slli_epi32(magnitude, 23 - f.mantissa_bits), splat(static_cast<uint32_t>(127 - f.bias) << 23));
  const __m256 subnormal = _mm256_mul_ps(_mm256_cvtepi32_ps(magnitude), _mm256_set1_ps(f.min_subnormal));
  const __m256i is_normal = _mm256_cmpgt_epi32(magnitude, splat((1u << f.mantissa_bits) - 1u));
  __m256i bits = _mm256_blendv_epi8(_mm256_castps_si256(subnormal), normal, is_normal);
  if constexpr (f.has_nan) {
    bits = _mm256_blendv_epi8(bits, splat(0x7FC00000u), _mm256_cmpgt_epi32(magnitude, splat(f.max_code)));
  }
  if constexpr (f.has_inf) {
    bits = _mm256_blendv_epi8(bits, splat(0x7F800000u), _mm256_cmpeq_epi32(magnitude, splat(f.max_code + 1u)));
  }
  return _mm256_castsi256_ps(_mm256_or_si256(bits, sign));
}

template <Dtype F>
void decode_loop(const uint8_t* q, float scale_inv, float* x, int64_t n) {
  const __m256 scale = _mm256_set1_ps(scale_inv);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) _mm256_storeu_ps(x + i, _mm256_mul_ps(decode8<F>(load8_bits(q + i)), scale));
  for (; i < n; ++i) x[i] = decode<F>(q[i]) * scale_inv;
}

// Calls body.operator()<F>() with the run-time format as a compile-time constant.
template <class Body>
void with_format(Dtype f, const char* caller, Body&& body) {
  switch (f) {
    case Dtype::e4m3: return body.template operator()<Dtype::e4m3>();
    case Dtype::e5m2: return body.template operator()<Dtype::e5m2>();
    case Dtype::e3m2: return body.template operator()<Dtype::e3m2>();
    case Dtype::e2m3: return body.template operator()<Dtype::e2m3>();
    case Dtype::e2m1: return body.template operator()<Dtype::e2m1>();
    default: OCTET_CHECK(is_element_format(f), "{} was asked for {}, which is not a quantized element format", caller, name(f));
  }
}

template <class T, class Scale>
void encode_any(Dtype f, const T* x, Scale scale, uint8_t* q, int64_t n) {
  with_format(f, "encode_array", [&]<Dtype F>() { encode_loop<F>(x, scale, q, n); });
}

constexpr uint32_t kInf = 0x7F800000u;

uint32_t abs_bits(float x) { return bits_of(x) & 0x7FFFFFFFu; }
uint32_t abs_bits(bf16 x) { return (static_cast<uint32_t>(x.bits) & 0x7FFFu) << 16; }
__m256i abs_bits8(__m256 x) { return _mm256_and_si256(_mm256_castps_si256(x), splat(0x7FFFFFFFu)); }

uint32_t max_lane(__m256i v) {
  alignas(32) uint32_t lanes[kLanes];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), v);
  return *std::max_element(lanes, lanes + kLanes);
}

template <class T>
int64_t count_nonfinite(const T* x, int64_t n) {
  int64_t count = 0;
  for (int64_t i = 0; i < n; ++i) count += abs_bits(x[i]) >= kInf;
  return count;
}

// As integers, magnitudes order like the numbers, with Inf and then NaN above all: one maximum finds both. The count
// costs a second pass, taken only when there is something to count.
template <class T>
Amax amax_of(const T* x, int64_t n) {
  __m256i m0 = _mm256_setzero_si256(), m1 = m0, m2 = m0, m3 = m0;
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    m0 = _mm256_max_epu32(m0, abs_bits8(load8(x + i)));
    m1 = _mm256_max_epu32(m1, abs_bits8(load8(x + i + 8)));
    m2 = _mm256_max_epu32(m2, abs_bits8(load8(x + i + 16)));
    m3 = _mm256_max_epu32(m3, abs_bits8(load8(x + i + 24)));
  }
  uint32_t m = max_lane(_mm256_max_epu32(_mm256_max_epu32(m0, m1), _mm256_max_epu32(m2, m3)));
  for (; i < n; ++i) m = std::max(m, abs_bits(x[i]));
  if (m < kInf) return {float_from_bits(m), 0};
  return {float_from_bits(kInf), count_nonfinite(x, n)};
}

template <class T>
void amax_columns_of(const T* x, int64_t rows, int64_t cols, int64_t ld, float* amax, int64_t& nonfinite) {
  OCTET_CHECK(ld >= cols, "amax_columns: {} columns in rows {} apart", cols, ld);
  __m256i seen8 = _mm256_setzero_si256();
  uint32_t seen = 0;
  for (int64_t r = 0; r < rows; ++r) {
    const T* row = x + r * ld;
    int64_t c = 0;
    for (; c + kLanes <= cols; c += kLanes) {
      const __m256i a = abs_bits8(load8(row + c));
      seen8 = _mm256_max_epu32(seen8, a);
      const __m256i m = _mm256_max_epu32(_mm256_castps_si256(load8(amax + c)), _mm256_min_epu32(a, splat(kInf)));
      _mm256_storeu_ps(amax + c, _mm256_castsi256_ps(m));
    }
    for (; c < cols; ++c) {
      const uint32_t a = abs_bits(row[c]);
      seen = std::max(seen, a);
      amax[c] = float_from_bits(std::max(bits_of(amax[c]), std::min(a, kInf)));
    }
  }
  if (std::max(seen, max_lane(seen8)) < kInf) return;
  for (int64_t r = 0; r < rows; ++r) nonfinite += count_nonfinite(x + r * ld, cols);
}

}  // namespace

void encode_array(Dtype f, const float* x, float scale, uint8_t* q, int64_t n) { encode_any(f, x, OneScale{scale}, q, n); }
void encode_array(Dtype f, const bf16* x, float scale, uint8_t* q, int64_t n) { encode_any(f, x, OneScale{scale}, q, n); }

void encode_array_scales(Dtype f, const float* x, const float* scales, uint8_t* q, int64_t n) { encode_any(f, x, ScaleArray{scales}, q, n); }
void encode_array_scales(Dtype f, const bf16* x, const float* scales, uint8_t* q, int64_t n) { encode_any(f, x, ScaleArray{scales}, q, n); }

void decode_array(Dtype f, const uint8_t* q, float scale_inv, float* x, int64_t n) {
  with_format(f, "decode_array", [&]<Dtype F>() { decode_loop<F>(q, scale_inv, x, n); });
}

void widen(const bf16* x, float* y, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) _mm256_storeu_ps(y + i, load8(x + i));
  for (; i < n; ++i) y[i] = to_float(x[i]);
}

void narrow(const float* x, bf16* y, int64_t n) {
  const auto round8 = [&](int64_t at) {
    const __m256 v = load8(x + at);
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), splat(1));
    const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, splat(0x7FFF)), odd), 16);
    return _mm256_blendv_epi8(rounded, splat(0x7FFF), _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q)));
  };
  int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    const __m256i words = _mm256_packus_epi32(round8(i), round8(i + 8));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(y + i), _mm256_permute4x64_epi64(words, 0xD8));
  }
  for (; i < n; ++i) y[i] = to_bf16(x[i]);
}

Amax amax_array(const float* x, int64_t n) { return amax_of(x, n); }
Amax amax_array(const bf16* x, int64_t n) { return amax_of(x, n); }

void amax_columns(const float* x, int64_t rows, int64_t cols, int64_t ld, float* amax, int64_t& nonfinite) {
  amax_columns_of(x, rows, cols, ld, amax, nonfinite);
}
void amax_columns(const bf16* x, int64_t rows, int64_t cols, int64_t ld, float* amax, int64_t& nonfinite) {
  amax_columns_of(x, rows, cols, ld, amax, nonfinite);
}

}  // namespace octet::cpu
