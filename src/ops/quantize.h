// Quantization of a high-precision matrix into the images a GEMM reads.
//
//   x           = the source, after the Hadamard transform along the contraction where the spec has one (numerics/hadamard.h)
//   amax_b      = max |x| over block b (unscaled; any NaN or Inf makes it +Inf and is counted)
//   scale_b     = scale rule of the spec (numerics/scale.h); delayed, static: QuantTarget::stored_scale, unless that is null (calibration)
//   q           = encode(fl32(x * scale_b)), round to nearest even or stochastic, saturating
//   scale_inv_b = fl32(1 / scale_b); E8M0: 2^(code - 127); ue4m3: fl32(decode(code) / tensor scale)
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

  bool wanted() const { return row.data.rows != 0 || col.data.rows != 0; }
};

namespace ops {
// x: [rows, cols] bf16 or f32, any ld.
void quantize(Ctx& ctx, const MatrixView& x, const QuantizedOut& out);
// out = round(decode(q) * scale_inv): the stored matrix of a row image. out: bf16 or f32, of its rows and columns, any ld.
void dequantize(Ctx& ctx, const Operand& image, const MatrixView& out);
}  // namespace ops
}  // namespace octet
