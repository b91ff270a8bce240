// The yardstick of `octet bench step`: OpenBLAS' own threaded sgemm on FP32 operands.
#pragma once
#include <cstdint>

namespace octet::cpu {

// Milliseconds of one [m,k] . [n,k]^T product with `threads` threads of the library; the best of two calls on resident operands.
double time_threaded_sgemm_ms(int threads, int64_t m, int64_t n, int64_t k);

}  // namespace octet::cpu
