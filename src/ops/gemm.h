// Matrix products, contraction last: out[m,n] = beta * out[m,n] + sum over terms t, over k of a_t[m,k] * b_t[n,k]  (+ bias[n]).
//
// Accumulation is FP32 (GemmMath::exact models the tensor core's narrower one); the result is rounded once, to out.dtype. Several
// terms serve the input gradient of fused projections: dX = dQ.Wq + dK.Wk + dV.Wv.
// Quantized operands enter as decode(q) * scale_inv. Both operands of a term are quantized or neither is.
#pragma once
#include <span>

#include "core/context.h"
#include "recipe/qtensor.h"

namespace octet {

struct GemmTerm {
  Operand a, b;  // [m, k], [n, k]
};

namespace ops {
// out: [m, n] bf16 or f32. beta: 0 or 1; beta 1 needs an f32 out. bias: [n] bf16 or f32, or empty.
void gemm(Ctx& ctx, std::span<const GemmTerm> terms, const MatrixView& out, float beta, Accumulate accumulate, const Tensor& bias = {});
}  // namespace ops
}  // namespace octet
