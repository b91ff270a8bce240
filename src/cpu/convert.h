// Array conversions between FP32, BF16 and the narrow formats, and amax: single-threaded AVX2 loops for the CPU backend.
// Every element gets the same bits as from the scalar functions of numerics/formats.h and numerics/bf16.h (NaN payloads aside),
// whatever its position, so callers may cut arrays into tiles as they like.
//
// Arrays need no alignment; input and output must not overlap; n = 0 is allowed. f must be one of e4m3, e5m2, e3m2, e2m3,
// e2m1, else Error(internal).
#pragma once
#include <cstdint>

#include "core/dtype.h"
#include "numerics/bf16.h"

namespace octet::cpu {

// q[i] = encode(x[i] * scale), the product rounded to FP32.
void encode_array(Dtype f, const float* x, float scale, uint8_t* q, int64_t n);
void encode_array(Dtype f, const bf16* x, float scale, uint8_t* q, int64_t n);

// q[i] = encode(x[i] * scales[i]): one row of a matrix whose scales differ by column.
void encode_array_scales(Dtype f, const float* x, const float* scales, uint8_t* q, int64_t n);
void encode_array_scales(Dtype f, const bf16* x, const float* scales, uint8_t* q, int64_t n);

// x[i] = decode(q[i]) * scale_inv, rounded to FP32.
void decode_array(Dtype f, const uint8_t* q, float scale_inv, float* x, int64_t n);

// BF16 to FP32 (exact) and back (to nearest, ties to even; NaN becomes 0x7FFF).
void widen(const bf16* x, float* y, int64_t n);
void narrow(const float* x, bf16* y, int64_t n);

// Maximum of |x|. Any element that is NaN or Inf makes it +Inf: conversions saturate, so this is where non-finite values
// are noticed. nonfinite counts them.
struct Amax {
  float amax = 0;
  int64_t nonfinite = 0;
};
Amax amax_array(const float* x, int64_t n);
Amax amax_array(const bf16* x, int64_t n);

// amax[c] = max(amax[c], |x[r * ld + c]| over rows r), +Inf for a column with a non-finite element; their number is added to
// nonfinite. amax must hold non-negative numbers (0 to start with), ld >= cols.
void amax_columns(const float* x, int64_t rows, int64_t cols, int64_t ld, float* amax, int64_t& nonfinite);
void amax_columns(const bf16* x, int64_t rows, int64_t cols, int64_t ld, float* amax, int64_t& nonfinite);

}  // namespace octet::cpu
