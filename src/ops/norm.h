// RMSNorm (Zhang and Sennrich, arXiv 1910.07467), fused with the residual addition before it and the quantization after it.
//
//   s    = round(x + delta)                       (delta empty: s = x)
//   rstd = 1 / sqrt(mean(s^2) + eps)              FP32, sum in fixed lanes
//   y    = round(s * rstd * gamma)                one rounding; the quantized images are made from the rounded y
#pragma once
#include "ops/quantize.h"

namespace octet {

struct RmsNormOut {
  Tensor sum;       // [T, H] s; wanted when delta is given
  Tensor y;         // [T, H] or empty
  Tensor rstd;      // [T] f32 or empty
  QuantizedOut images;
};

namespace ops {
// x, delta: [T, H]; gamma: [H].
void rmsnorm_quantize(Ctx& ctx, const Tensor& x, const Tensor& delta, const Tensor& gamma, float eps, const RmsNormOut& out);

// dx = round(d_residual + d(rmsnorm)/ds . dy); dgamma += sum over tokens of dy * s * rstd, in fixed tiles of rows.
// dy, s, d_residual (may be empty), dx: [T, H]; rstd: [T]; dgamma: [H] f32. dx may alias d_residual.
void rmsnorm_backward(Ctx& ctx, const Tensor& dy, const Tensor& s, const Tensor& gamma, const Tensor& rstd, const Tensor& d_residual, const Tensor& dx,
                      const Tensor& dgamma);
}  // namespace ops
}  // namespace octet
