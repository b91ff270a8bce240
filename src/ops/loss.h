// Softmax cross-entropy with z-loss, forward and backward in one pass over the logits (they are overwritten by their gradient).
//
//   loss_t  = lse_t - logit_t[label_t]           lse over the first `vocab` columns only: padded columns never enter
//   z_t     = z_coefficient * lse_t^2            (PaLM, arXiv 2204.02311, section 5)
//   dlogits = grad_scale * ((1 + 2 z_coefficient lse_t) softmax - onehot)
// Rows with label -1 have no loss and a zero gradient; padded columns get a zero gradient.
#pragma once
#include "core/context.h"

namespace octet::ops {

// logits: [n, V_padded] bf16 or f32, overwritten with dlogits unless grad_scale is null. labels: [n] i32. loss, z: [n] f32 per token.
// grad_scale: 1 / (valid tokens of the global batch), in the memory of the device; null: the loss alone.
void cross_entropy(Ctx& ctx, const Tensor& logits, const Tensor& labels, int64_t vocab, float z_coefficient, const float* grad_scale, const Tensor& loss, const Tensor& z);

}  // namespace octet::ops
