// Operators that write images: from their arguments to the kernels of kernels/quantize.h.
#include "cuda/quantize.h"

#include "cuda/cuda_ops.h"
#include "cuda/device.h"
#include "ops/activation.h"

namespace octet::cuda {
namespace {

StatisticsParams statistics_of(const QuantTarget& t) { return {t.amax, t.nonfinite, t.row_health, t.col_health}; }

}  // namespace

ImageParams image_params(const Operand& image, const QuantSpec& spec, bool column, const float* stored_scale) {
  ImageParams p;
  if (image.data.rows == 0) return p;
  OCTET_CHECK(!image.transposed, "an image in the layout of the CPU backend was given to the CUDA backend");
  p.codes = static_cast<uint8_t*>(image.data.data);
  p.transposed = column;
  p.scale_inv = image.scale_inv.as<float>();
  p.scale_row_stride = image.scale_row_stride;
  p.scale_col_stride = image.scale_col_stride;
  p.block_rows = image.block_rows;
  p.block_cols = image.block_cols;
  p.stochastic = spec.rounding == Rounding::stochastic;
  p.hadamard = spec.hadamard;
  p.scale.rule = spec.scale == ScaleKind::e8m0 ? ScaleRule::e8m0 : spec.scale == ScaleKind::ue4m3 ? ScaleRule::two_level : ScaleRule::fp32;
  p.scale.format = spec.format;
  p.scale.pow2 = spec.scale == ScaleKind::pow2;
  p.scale.fp64_divide = spec.fp64_divide;
  p.scale.epsilon = spec.amax_epsilon;
  p.scale.overflow_scale = spec.overflow_scale;
  p.scale.stored = spec.stored_scale() ? stored_scale : nullptr;
  return p;
}

void quantize_source(Ctx& ctx, const SourceParams& source, const QuantizedOut& out) {
  Arena::Scope scope(ctx.scratch());
  const bool row_wanted = out.row.data.rows != 0, col_wanted = out.col.data.rows != 0;
  const int64_t elements = source.rows * source.cols;
  // Memory of both families is planned: which one runs depends on whether this step gathers statistics.
  const auto blocks = [](const Operand& o) { return block_count(o.data.rows, o.block_rows) * block_count(o.data.cols, o.block_cols); };
  const int64_t most_blocks = std::max(row_wanted ? blocks(out.row) : 0, col_wanted ? blocks(out.col) : 0);
  const bool transforms = (row_wanted && out.row_spec.hadamard) || (col_wanted && out.col_spec.hadamard);
  QuantizeScratch scratch{};
  scratch.block_amax = ctx.scratch().alloc_array<unsigned>(most_blocks);
  scratch.multiplier = ctx.scratch().alloc_array<float>(most_blocks);
  scratch.tensor_amax = ctx.scratch().alloc_array<float>(1);
  scratch.transformed = ctx.scratch().alloc_array<float>(transforms ? elements : 0);
  scratch.health = ctx.scratch().alloc_array<ImageHealth>(health_tiles(source.rows, source.cols));
  float* maxima = ctx.scratch().alloc_array<float>(source.rows + source.cols + 2);
  OCTET_CHECK(source.rows <= int64_t{65535} * 32, "quantize: {} rows, at most {} fit a launch", source.rows, int64_t{65535} * 32);
  if (ctx.planning() || elements == 0) return;

  const ImageParams row = image_params(out.row, out.row_spec, false, out.target.stored_scale), col = image_params(out.col, out.col_spec, true, out.target.stored_scale);
  const StatisticsParams statistics = statistics_of(out.target);
  CUstream_st* stream = ctx.cuda().stream();
  if (tile_serves(source, row, col, statistics)) {
    OCTET_CHECK(tile_scratch_floats(source, row, col) <= source.rows + source.cols + 2, "scratch of {} maxima", tile_scratch_floats(source, row, col));
    launch_quantize_tiles(stream, source, row, col, statistics, maxima);
    return;
  }
  if (source.value) launch_source_values(stream, source);
  const RandomParams random{ctx.seed, out.target.site_hash, ctx.key};
  if (row_wanted) launch_quantize_general(stream, source, row, statistics, true, random, scratch);
  if (col_wanted) launch_quantize_general(stream, source, col, statistics, !row_wanted, random, scratch);
}

SourceParams plain_source(const MatrixView& x) {
  SourceParams s;
  s.wide = x.dtype == Dtype::f32;
  s.x = x.data;
  s.ld = x.ld;
  s.rows = x.rows;
  s.cols = x.cols;
  return s;
}

void quantize(Ctx& ctx, const MatrixView& x, const QuantizedOut& out) { quantize_source(ctx, plain_source(x), out); }

void dequantize(Ctx& ctx, const Operand& image, const MatrixView& out) {
  if (ctx.planning() || out.elements() == 0) return;
  QuantSpec spec;
  spec.format = image.data.dtype;
  launch_dequantize(ctx.cuda().stream(), image_params(image, spec, false, nullptr), out.rows, out.cols, out.dtype == Dtype::f32, out.data, out.ld);
}

void swiglu_quantize(Ctx& ctx, const Tensor& gate_up, const Tensor& y, const QuantizedOut& images) {
  SourceParams s = plain_source(gate_up);
  s.kind = SourceKind::swiglu;
  s.cols = gate_up.cols() / 2;
  s.value = y.data;
  if (images.row.data.rows || images.col.data.rows) {
    quantize_source(ctx, s, images);
  } else if (!ctx.planning() && s.rows * s.cols != 0) {
    launch_source_values(ctx.cuda().stream(), s);
  }
}

}  // namespace octet::cuda
