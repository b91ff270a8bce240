// The bit model of FP8 tensor-core products (numerics/accumulate.h) for one tile; for tests and studies, not for speed.
//
// Along k the product is cut where a scale changes, and at multiples of 128 for accurate accumulation. Within a piece the
// tensor core's chain runs over the codes' values; then sum = fma(chain, fl32(scale_a * scale_b), sum) in FP32. With fast
// accumulation and scales constant along k there is one piece: the accumulator is never promoted.
#pragma once
#include <span>

#include "ops/gemm.h"

namespace octet::cpu {

void exact_tile(std::span<const GemmTerm> terms, Accumulate accumulate, int64_t m0, int64_t m1, int64_t n0, int64_t n1, float* c, int64_t ldc, bool add);

}  // namespace octet::cpu
