// Token embedding: a row gather, and its transpose as a scatter-add in token order (no atomics).
#pragma once
#include "core/context.h"

namespace octet::ops {

// table: [V, H], rows [first_row, first_row + V) of the vocabulary; tokens: [T] i32; out: [T, H]. A token that the table does not have gives a row of zeros.
void embedding(Ctx& ctx, const Tensor& table, const Tensor& tokens, const Tensor& out, int64_t first_row = 0);
// d_table: [V, H] f32, accumulated. A token that the table does not have adds nothing.
void embedding_backward(Ctx& ctx, const Tensor& d_out, const Tensor& tokens, const Tensor& d_table, int64_t first_row = 0);

}  // namespace octet::ops
