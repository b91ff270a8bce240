// Rotary position embedding (Su et al., arXiv 2104.09864) in the half-split pairing of Hugging Face Llama, with the optional
// per-head RMSNorm of q and k before it (Qwen3).
//
//   pair i of a head of size d, rotated dims r = partial_rotary_factor * d:  (u_i, u_{i + r/2}) turned by position * freq_i,
//   freq_i = theta^(-2i/r), with the llama3 bands when rope_scaling says so. Dimensions from r on pass through.
// Computed in FP32, rounded once after normalization and rotation.
#pragma once
#include "core/context.h"

namespace octet {

struct HeadGeometry {
  int64_t heads, kv_heads, head_dim, rotary_dim;
  float norm_eps;
  int64_t qkv_width() const { return (heads + 2 * kv_heads) * head_dim; }
};

struct QkNorm {
  Tensor gamma_q, gamma_k;  // [d]; empty: no QK-norm
  Tensor rstd;              // [T, heads + kv_heads] f32, written forward and read backward
  Tensor dgamma_q, dgamma_k;  // [d] f32, accumulated by the backward
};

namespace ops {
// qkv, out: [T, (A + 2K) d], columns q heads, k heads, v heads; v is copied. out may be qkv itself.
// positions: [T] i32; cos_sin: [max_position, rotary_dim] f32, cosines then sines.
void qk_norm_rope(Ctx& ctx, const Tensor& qkv, const Tensor& positions, const Tensor& cos_sin, const HeadGeometry& g, const QkNorm& norm, const Tensor& out);
// d_out: gradient of out; d_qkv may be d_out itself; qkv is the forward's input (read only with QK-norm).
void qk_norm_rope_backward(Ctx& ctx, const Tensor& d_out, const Tensor& qkv, const Tensor& positions, const Tensor& cos_sin, const HeadGeometry& g,
                           const QkNorm& norm, const Tensor& d_qkv);
}  // namespace ops
}  // namespace octet
