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

// The same over a vocabulary that lies on several ranks (shards): a rank has the columns [first, first + columns) of it, stored as the first `columns` columns of
// its logits; what follows them is padding. columns may be 0. Between the two operators the ranks exchange their parts: one exchange for maximum, sum and label.
//
//   part s:  m_s = max over its columns   t_s = sum exp(x - m_s)   l_s = logit of the label, 0 when it is on another shard   (without columns: -inf, 0, 0)
//   M = max m_s     lse = M + log(sum t_s exp(m_s - M))     logit[label] = sum l_s          sums in the shards' order, so that all ranks have the same bits
// A NaN or +Inf on any shard makes t_s NaN, hence the loss of its row not finite on all; a shard of nothing but -Inf has the parts of one without columns.
//
// parts: [n, 3] f32: (m, t, l) of each row, also of those with label -1.
void softmax_parts(Ctx& ctx, const Tensor& logits, const Tensor& labels, int64_t first, int64_t columns, const Tensor& parts);
// parts: [shards, n, 3], in the shards' order. Otherwise as cross_entropy: loss and z are those of the whole vocabulary, alike on all ranks; dlogits are this rank's.
void cross_entropy_of_parts(Ctx& ctx, const Tensor& logits, const Tensor& labels, int64_t first, int64_t columns, const Tensor& parts, float z_coefficient,
                            const float* grad_scale, const Tensor& loss, const Tensor& z);

}  // namespace octet::ops
