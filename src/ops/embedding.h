// Token embedding: a row gather, and its transpose as a scatter-add in token order (no atomics).
#pragma once
#include "core/context.h"

namespace octet::ops {

// table: [V, H]; tokens: [T] i32, each in [0, V); out: [T, H].
void embedding(Ctx& ctx, const Tensor& table, const Tensor& tokens, const Tensor& out);
// d_table: [V, H] f32, accumulated.
void embedding_backward(Ctx& ctx, const Tensor& d_out, const Tensor& tokens, const Tensor& d_table);

}  // namespace octet::ops
