// Reductions in a fixed order, and plain operations on memory. Sums: tiles of fixed size summed in double, then the tiles in index order.
#pragma once
#include <span>

#include "core/context.h"

namespace octet::ops {

// *total += sum of x (f32); total: device memory. NaN and Inf propagate.
void sum(Ctx& ctx, const Tensor& x, double* total);
// totals[i] += sum of the squares of x[i] (f32), each tensor's by itself in the order that it has alone; totals: device memory.
void sum_squares(Ctx& ctx, std::span<const Tensor> x, double* totals);
// d_bias += column sums of dy. dy: [T, N] bf16 or f32; d_bias: [N] f32.
void column_sums(Ctx& ctx, const MatrixView& dy, const Tensor& d_bias);
void zero(Ctx& ctx, const Tensor& x);
void copy(Ctx& ctx, const Tensor& from, const Tensor& to);  // same shape and dtype
void add(Ctx& ctx, const Tensor& from, const Tensor& to);   // to += from; same shape, f32
// to[c][r] = from[r][c], bit for bit. from: [R, C], to: [C, R], both of one type: codes (any one-byte format) or f32; any ld; other memory.
void transpose(Ctx& ctx, const MatrixView& from, const MatrixView& to);
// Parts one below the other become neighbouring column ranges: whole[i][p w + j] = parts[p n + i][j], bit for bit. parts: [P n, w], whole: [n, P w], both of one type; any ld; other memory.
void join_columns(Ctx& ctx, const MatrixView& parts, const MatrixView& whole);

}  // namespace octet::ops
