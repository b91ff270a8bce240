// Quantization of a high-precision matrix into the images a GEMM reads.
//
//   x           = the source, after the Hadamard transform along the contraction where the spec has one (numerics/hadamard.h)
//   amax_b      = max |x| over block b (unscaled; any NaN or Inf makes it +Inf and is counted)
//   scale_b     = scale rule of the spec (numerics/scale.h); delayed, static: QuantTarget::stored_scale, unless that is null (calibration)
//   q           = encode(fl32(x * scale_b)), round to nearest even or stochastic, saturating
//   scale_inv_b = fl32(1 / scale_b); E8M0: 2^(code - 127); ue4m3: fl32(decode(code) / tensor scale)
// A block of a tensor of which ranks hold parts may reach across them: its amax is the maximum of the parts', exchanged between shared_amaxes() and quantize().
//   statistics  = recipe/health.h, added to QuantTarget::row_health, col_health where those are not null
//
// Both backends give the same bits. Blocks at the edges are partial: their amax is over the elements that exist.
#pragma once
#include "core/context.h"
#include "recipe/qtensor.h"
#include "recipe/quant_registry.h"

namespace octet {

// Images of one matrix [rows, cols]; an image without data is not wanted. When both are wanted and their blocks cover the same
// elements (per-tensor, n x n), the caller passes only `row` and uses row.flipped() as column image.
struct QuantizedOut {
  QuantSpec row_spec, col_spec;
  Operand row, col;
  QuantTarget target;
  // f32, shared_amax_count() of the image: amaxes that its scales come from instead of the matrix's own (ue4m3: the tensor's; the blocks' are the matrix's own).
  // Rank 0: the matrix at hand gives them. Stored scales ignore them; target's amax, counts and statistics are of the matrix at hand all the same, but for the range of
  // scales, which is that of blocks whose given amax is finite and not zero.
  Tensor row_amax{}, col_amax{};

  bool wanted() const { return row.data.rows != 0 || col.data.rows != 0; }
};

// Number of amaxes of an image of a [rows, cols] matrix whose blocks may reach across ranks, in the order of the blocks: 1 of per-tensor and two-level (ue4m3) scales;
// of blocks as long as the contraction, their number: [1, 0] has one a row of the contraction-last matrix. 0: blocks of fixed extent, which do not reach across.
// Not for two-level scales with blocks of which one side alone is whole (internal error): tensor and blocks would both reach across.
inline int64_t shared_amax_count(const QuantSpec& spec, int64_t rows, int64_t cols, bool column) {
  if (!spec.quantized()) return 0;
  const bool fixed = spec.block_rows != 0 && spec.block_cols != 0;
  if (spec.scale == ScaleKind::ue4m3) {
    OCTET_CHECK(fixed || spec.per_tensor(), "two-level scales with blocks [{}, {}] on matrices that ranks share", spec.block_rows, spec.block_cols);
    return 1;
  }
  if (fixed) return 0;
  return block_count(column ? cols : rows, spec.block_rows) * block_count(column ? rows : cols, spec.block_cols);
}
// The given ones of an image, null without.
inline const float* given_amax(const Tensor& amax) { return amax.shape.rank() == 0 || amax.elements() == 0 ? nullptr : amax.as<float>(); }

namespace ops {
// x: [rows, cols] bf16 or f32, any ld.
void quantize(Ctx& ctx, const MatrixView& x, const QuantizedOut& out);
// amax: [shared_amax_count()] f32, overwritten with max |x| of each such block (after the spec's Hadamard transform), +Inf where an element is not finite, 0 where there
// is none. column: of the column image.
void shared_amaxes(Ctx& ctx, const MatrixView& x, const QuantSpec& spec, bool column, const Tensor& amax);
// out = round(decode(q) * scale_inv): the stored matrix of a row image. out: bf16 or f32, of its rows and columns, any ld.
void dequantize(Ctx& ctx, const Operand& image, const MatrixView& out);
// Scales that are powers of two (E8M0) as they travel: codes [n] e8m0 of scale_inv [n] f32, a quarter of the bytes; and back. Exact.
void narrow_scales(Ctx& ctx, const Tensor& scale_inv, const Tensor& codes);
void widen_scales(Ctx& ctx, const Tensor& codes, const Tensor& scale_inv);
}  // namespace ops
}  // namespace octet
