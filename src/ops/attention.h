// Causal grouped-query attention: out = softmax(q k^T / sqrt(d) over visible keys) v.
//
// Key j is visible to query i of the same sample when document_start[i] <= j <= i. Scores, softmax and P are FP32; out and the
// gradients are rounded once. Backward recomputes P from the saved log-sum-exp (Dao et al., arXiv 2205.14135) and adds the query heads
// of a group, and the query tiles, in index order.
#pragma once
#include "ops/quantize.h"
#include "ops/rope.h"

namespace octet::ops {

// qkv: [B*S, (A + 2K) d] after RoPE; document_start: [B*S] i32 or empty (no document masking); out: [B*S, A d]; lse: [B, A, S] f32;
// images of the rounded out.
void attention(Ctx& ctx, const Tensor& qkv, const Tensor& document_start, int64_t seq_len, const HeadGeometry& g, const Tensor& out, const Tensor& lse,
               const QuantizedOut& images = {});

// d_out, out: [B*S, A d]; d_qkv: [B*S, (A + 2K) d].
void attention_backward(Ctx& ctx, const Tensor& d_out, const Tensor& qkv, const Tensor& out, const Tensor& lse, const Tensor& document_start, int64_t seq_len,
                        const HeadGeometry& g, const Tensor& d_qkv);

}  // namespace octet::ops
