// Sums and maxima of several arrays in a given order: the arithmetic of the backends in host memory.
#pragma once
#include <vector>

#include "comm/comm.h"

namespace octet {

// target[i] = ((from[0][i] + from[1][i]) + from[2][i]) + ..., or the maximum in that order, for i < count. Arrays of f32, f64, i64, and for sums bf16; target may be one of
// them. A sum is rounded in the type after each addition, of bf16 once, behind additions in FP32; i64 wraps around. The maximum is the earliest NaN if there is one, and of equal values (-0, +0) the earliest.
void reduce_in_order(Reduce op, Dtype dtype, void* target, const std::vector<const void*>& from, int64_t count);

}  // namespace octet
