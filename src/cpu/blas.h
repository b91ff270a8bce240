// The one door to single-threaded matrix products on row-major FP32 matrices.
#pragma once
#include <cstdint>

#include "core/context.h"

namespace octet::cpu {

// A matrix as it lies in memory: row-major with leading dimension ld, or the transpose of that.
struct Flat {
  const float* data;
  int64_t ld;
  bool transposed = false;
};

// c[m,n] = op(a)[m,k] . op(b)[k,n], added to c when accumulate. blas: OpenBLAS. fixed and exact: own loops, each element an fma
// chain over k in index order, the same bits on every machine.
void matmul(GemmMath math, int64_t m, int64_t n, int64_t k, Flat a, Flat b, bool accumulate, float* c, int64_t ldc);

}  // namespace octet::cpu
