// What a linear reads of the other ranks' tokens: gathers of values, and of codes and scales.
#include <fmt/format.h>

#include <algorithm>

#include "core/trace.h"
#include "model/linear.h"
#include "ops/reduce.h"

namespace octet {
namespace {

// A column image that is made again: of what it says only its own statistics are new.
QuantTarget again(QuantTarget t) {
  t.amax = nullptr;
  t.nonfinite = nullptr;
  t.row_health = nullptr;
  return t;
}

}  // namespace

// [tokens, width] of the ranks' own rows.
Tensor Linear::gathered(Ctx& ctx, Arena& arena, const Tensor& own, int64_t tokens) const {
  Span span(ctx.tracer, module_, "gather");
  return tp_.gathered(ctx, arena, own, tokens);
}

// The image of [tokens, width] of the ranks' images of their tokens. Scales that belong to all tokens are the same on all.
Operand Linear::gathered(Ctx& ctx, Arena& arena, const QuantSpec& spec, const Operand& own, bool column, int64_t tokens, int64_t width) const {
  const Operand whole = alloc_image(arena, spec, tokens, width, column, layout_);
  const bool by_rows = !column || whole.transposed;   // tokens are rows of the stored matrix, else its columns
  const int64_t block = by_rows ? whole.block_rows : whole.block_cols;
  // A short validation batch is filled up, so what is true of the planned micro-batch is true of all.
  if (tokens % (tp_.size * std::max<int64_t>(1, block)) != 0) {
    throw Error(ExitCode::config, fmt::format("true, but {} tokens of a micro-batch do not divide into {} parts of whole blocks of {} tokens ({})", tokens, tp_.size, std::max<int64_t>(1, block), module_),
                "parallel.fp8_activation_gather", "set it to false, or change batch.micro or data.seq_len");
  }
  // columns: those of `all` that are no padding.
  const auto gather = [&](const Tensor& part, const Tensor& all, bool rows, int64_t columns) {
    if (rows) tp_.gather_rows(ctx, part, all);
    else tp_.gather_columns(ctx, part, MatrixView(all).columns(0, columns));
  };
  Span span(ctx.tracer, module_, "gather codes");
  gather(own.codes(), whole.codes(), by_rows, tokens);
  const Tensor own_scales = own.scales(), scales = whole.scales();
  if (block == 0) {
    ops::copy(ctx, own_scales, scales);
    return whole;
  }
  const bool scales_by_rows = by_rows != whole.scales_by_columns();
  const int64_t blocks = tokens / block;
  if (spec.scale != ScaleKind::e8m0) {
    gather(own_scales, scales, scales_by_rows, blocks);
    return whole;
  }
  Arena::Scope scope(ctx.scratch());
  const Tensor narrow = ctx.scratch().alloc(Dtype::e8m0, own_scales.shape), all_narrow = ctx.scratch().alloc(Dtype::e8m0, scales.shape);
  ops::narrow_scales(ctx, own_scales, narrow);
  gather(narrow, all_narrow, scales_by_rows, blocks);
  ops::widen_scales(ctx, all_narrow, scales);
  return whole;
}

// The column image of a row image that has its bytes (images_share_bytes), where the device stores it by itself.
void Linear::transpose_image(Ctx& ctx, const Operand& row, const Operand& col) const {
  Span span(ctx.tracer, module_, "transpose codes", {.bytes = 2.0 * static_cast<double>(row.data.elements())});
  ops::transpose(ctx, row.data, col.data);
  const auto grid = [](const Operand& image) {
    MatrixView m = image.scale_inv;
    m.ld = image.scale_row_stride;
    return m;
  };
  ops::transpose(ctx, grid(row), grid(col));
}

Operand Linear::column_image(Ctx& ctx, Arena& arena, const QuantSpec& spec, const Operand& row) const {
  if (layout_ == ImageLayout::source) return row.flipped();
  const Operand col = alloc_image(arena, spec, row.rows(), row.k(), true, layout_);
  transpose_image(ctx, row, col);
  return col;
}

// Of a gathered input, for the weight gradient.
Operand Linear::column_of(const Pass& pass, const LinearInput& x, int64_t tokens) const {
  Ctx& ctx = pass.ctx;
  Arena& scratch = ctx.scratch();
  const bool shared = one_image(layout_, recipe_.x_row, recipe_.x_col);
  if (gathers_codes() && recipe_.x_col.quantized()) {
    if (!images_share_bytes(recipe_.x_row, recipe_.x_col)) return gathered(ctx, scratch, recipe_.x_col, x.own, true, tokens, in_);
    if (shared) return gathered(ctx, scratch, recipe_.x_row, x.own, false, tokens, in_).flipped();
    const Operand col = alloc_image(scratch, recipe_.x_col, tokens, in_, true, layout_);
    Arena::Scope scope(scratch);   // of the row image
    transpose_image(ctx, gathered(ctx, scratch, recipe_.x_row, x.own, false, tokens, in_), col);
    return col;
  }
  const Tensor whole = gathered(ctx, scratch, x.value, tokens);
  if (!recipe_.x_col.quantized()) return Operand::plain(whole, true);
  QuantizedOut images{recipe_.x_row, recipe_.x_col, {}, {}, again(pass.target(site_x_))};
  (shared ? images.row : images.col) = alloc_image(scratch, recipe_.x_col, tokens, in_, !shared, layout_);
  ops::quantize(ctx, whole, images);
  return shared ? images.row.flipped() : images.col;
}

// Of this rank's tokens dy [t, N]: codes that both images have, gathered once.
LinearGrad Linear::gathered_grad_codes(const Pass& pass, const Tensor& dy, int64_t tokens) const {
  Ctx& ctx = pass.ctx;
  const Part& p = parts_.front();
  QuantizedOut own{recipe_.dy_row, recipe_.dy_col, alloc_image(ctx.scratch(), recipe_.dy_row, dy.rows(), out_, false, layout_), {}, pass.target(p.site_dy)};
  own.target.place = {tp_.rank * dy.rows(), 0, p.weight->whole[0]};
  quantize_over_ranks(ctx, {{dy, &own}}, true);
  LinearGrad grad;
  grad.row.push_back(gathered(ctx, ctx.scratch(), recipe_.dy_row, own.row, false, tokens, out_));
  grad.col.push_back(column_image(ctx, ctx.scratch(), recipe_.dy_col, grad.row.front()));
  grad.images.resize(1);
  grad.later.resize(1);
  finish_grad(pass, grad);
  return grad;
}

}  // namespace octet
