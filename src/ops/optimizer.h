// AdamW (Loshchilov and Hutter, arXiv 1711.05101) on FP32 masters, with the BF16 working copy written in the same pass.
//
//   g  = grad * grad_scale                        (clipping)
//   m  = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
//   w  = w - lr * weight_decay * w - lr * (m / bias1) / (sqrt(v / bias2) + eps),   bias_i = 1 - beta_i^t
// FP32 throughout, every product explicitly rounded or fused as written in numerics/adamw.h: both backends give the same bits.
#pragma once
#include "core/context.h"
#include "numerics/adamw.h"

namespace octet::ops {

// master, m, v, grad: f32 of one shape; working: bf16 copy to write, or empty when masters are the working weights.
void adamw(Ctx& ctx, const Tensor& master, const Tensor& m, const Tensor& v, const Tensor& grad, const Tensor& working, const AdamwStep& step);
// working = RNE(master).
void cast_weights(Ctx& ctx, const Tensor& master, const Tensor& working);

}  // namespace octet::ops
