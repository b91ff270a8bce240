// Operators that write images: from their arguments to the kernels of kernels/quantize.h.
#include "cuda/quantize.h"

#include <algorithm>
#include <vector>

#include "cuda/cuda_ops.h"
#include "cuda/device.h"
#include "cuda/kernels/rows.h"
#include "ops/activation.h"

namespace octet::cuda {
namespace {

int64_t maxima_a_part(const SourceParams& s) { return s.rows + s.cols + 2; }
// Whether scales are made of maxima of more than a tile: by the specs alone, so that plans and steps agree.
bool awaits_maxima(const QuantizedOut& q) {
  for (const QuantSpec* s : {&q.row_spec, &q.col_spec}) {
    const bool in_tile = s->block_cols == 128 && (s->block_rows == 1 || s->block_rows == 128);
    if (s->quantized() && !s->stored_scale() && !in_tile) return true;
  }
  return false;
}
void check_rows(int64_t rows) { OCTET_CHECK(rows <= int64_t{65535} * 32, "quantize: {} rows, at most {} fit a launch", rows, int64_t{65535} * 32); }
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

ImagePair image_pair(const QuantizedOut& out) {
  ImagePair pair{image_params(out.row, out.row_spec, false, out.target.stored_scale), image_params(out.col, out.col_spec, true, out.target.stored_scale), statistics_of(out.target)};
  pair.row.amax = given_amax(out.row_amax);
  pair.col.amax = given_amax(out.col_amax);
  return pair;
}

SourceScratch source_scratch(Ctx& ctx, const SourceParams& source, std::span<const QuantizedOut> parts) {
  // Parts take turns in the general family's.
  int64_t most_blocks = 0;
  bool transforms = false;
  for (const QuantizedOut& out : parts) {
    for (const Operand* image : {&out.row, &out.col}) {
      if (image->data.rows == 0) continue;
      most_blocks = std::max(most_blocks, block_count(image->data.rows, image->block_rows) * block_count(image->data.cols, image->block_cols));
      transforms |= (image == &out.row ? out.row_spec : out.col_spec).hadamard;
    }
  }
  SourceScratch scratch{};
  scratch.general.block_amax = ctx.scratch().alloc_array<unsigned>(most_blocks);
  scratch.general.multiplier = ctx.scratch().alloc_array<float>(most_blocks);
  scratch.general.tensor_amax = ctx.scratch().alloc_array<float>(1);
  scratch.general.transformed = ctx.scratch().alloc_array<float>(transforms ? source.rows * source.cols : 0);
  scratch.general.health = ctx.scratch().alloc_array<ImageHealth>(health_tiles(source.rows, source.cols));
  scratch.maxima = ctx.scratch().alloc_array<float>(static_cast<int64_t>(parts.size()) * maxima_a_part(source));
  return scratch;
}

void quantize_source(Ctx& ctx, const SourceParams& source, std::span<const QuantizedOut> parts) {
  Arena::Scope scope(ctx.scratch());
  const SourceScratch scratch = source_scratch(ctx, source, parts);
  if (!ctx.planning()) quantize_source(ctx, source, parts, scratch);
}

void quantize_source(Ctx& ctx, const SourceParams& source, std::span<const QuantizedOut> parts, const SourceScratch& scratch) {
  check_rows(source.rows);
  if (source.rows * source.cols == 0) return;
  std::vector<ImagePair> pairs;
  for (const QuantizedOut& out : parts) pairs.push_back(image_pair(out));
  CUstream_st* stream = ctx.cuda().stream();
  if (tile_serves(source, pairs)) {
    const int64_t floats = tile_scratch_floats(source, pairs);
    OCTET_CHECK(floats <= static_cast<int64_t>(parts.size()) * maxima_a_part(source), "scratch of {} maxima", floats);
    launch_quantize_tiles(stream, source, pairs, scratch.maxima);
    return;
  }
  SourceParams whole = source;
  if (source.kind == SourceKind::adamw) {
    launch_adamw(stream, source.adamw);
    whole.kind = SourceKind::plain;
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    const SourceParams part = select_part(whole, static_cast<int>(i));
    const ImagePair& pair = pairs[i];
    if (part.value) launch_source_values(stream, part);
    const RandomParams random{ctx.seed, parts[i].target.site_hash, ctx.key, parts[i].target.place};
    if (pair.row.codes) launch_quantize_general(stream, part, pair.row, pair.statistics, true, random, scratch.general);
    if (pair.col.codes) launch_quantize_general(stream, part, pair.col, pair.statistics, !pair.row.codes, random, scratch.general);
  }
}

SourceParams plain_source(const MatrixView& x) {
  SourceParams s;
  s.wide = x.dtype == Dtype::f32;
  s.x = x.data;
  s.ld = x.ld;
  s.value_ld = x.cols;
  s.rows = x.rows;
  s.cols = x.cols;
  return s;
}

void quantize(Ctx& ctx, const MatrixView& x, const QuantizedOut& out) { quantize_source(ctx, plain_source(x), out); }

void shared_amaxes(Ctx& ctx, const MatrixView& x, const QuantSpec& spec, bool column, const Tensor& amax) {
  Arena::Scope scope(ctx.scratch());
  QuantizeScratch scratch{};
  scratch.tensor_amax = ctx.scratch().alloc_array<float>(1);
  scratch.transformed = ctx.scratch().alloc_array<float>(spec.hadamard ? x.rows * x.cols : 0);
  if (ctx.planning() || amax.elements() == 0) return;
  check_rows(x.rows);
  if (x.elements() == 0) {
    const MemorySource memory = ctx.cuda().memory();
    return memory.fill(memory.user, amax.data, 0, amax.bytes());
  }
  ImageParams image;
  image.transposed = column;
  image.hadamard = spec.hadamard;
  if (spec.scale != ScaleKind::ue4m3) {   // of two-level scales the tensor's
    image.block_rows = spec.block_rows;
    image.block_cols = spec.block_cols;
  }
  const SourceParams source = plain_source(x);
  const bool whole = image.block_rows == 0 && image.block_cols == 0, lines = image.block_rows == 1 && image.block_cols == 0;
  if ((whole || lines) && !image.hadamard && tile_takes_maxima(source)) {
    float* to = amax.as<float>();
    return launch_tile_maxima(ctx.cuda().stream(), source, whole ? to : nullptr, lines && !column ? to : nullptr, lines && column ? to : nullptr);
  }
  launch_shared_amaxes(ctx.cuda().stream(), source, image, amax.as<float>(), scratch);
}

void dequantize(Ctx& ctx, const Operand& image, const MatrixView& out) {
  if (ctx.planning() || out.elements() == 0) return;
  QuantSpec spec;
  spec.format = image.data.dtype;
  launch_dequantize(ctx.cuda().stream(), image_params(image, spec, false, nullptr), out.rows, out.cols, out.dtype == Dtype::f32, out.data, out.ld);
}

void swiglu_quantize(Ctx& ctx, const Tensor& gate_up, const Tensor& y, const QuantizedOut& images) {
  SourceParams s = plain_source(gate_up);
  s.kind = SourceKind::swiglu;
  s.cols = s.value_ld = gate_up.cols() / 2;
  s.value = y.data;
  if (images.wanted()) {
    quantize_source(ctx, s, images);
  } else if (!ctx.planning() && s.rows * s.cols != 0) {
    launch_source_values(ctx.cuda().stream(), s);
  }
}

void swiglu_backward(Ctx& ctx, const Tensor& dy, const Tensor& gate_up, const Tensor& d_gate_up, const QuantizedOut& gate_images, const QuantizedOut& up_images) {
  // Where maxima are needed first, tiles would compute everything twice: exponentials of both halves in both passes take longer than the values' way through memory.
  const bool by_values = !gate_images.wanted() || awaits_maxima(gate_images) || awaits_maxima(up_images);
  if (by_values) {
    Arena::Scope scope(ctx.scratch());
    const Tensor values = d_gate_up.shape.rank() ? d_gate_up : ctx.scratch().alloc(gate_up.dtype, gate_up.shape);
    if (!ctx.planning() && dy.elements() != 0) {
      launch_swiglu_backward(ctx.cuda().stream(), gate_up.dtype == Dtype::f32, dy.data, gate_up.data, values.data, dy.rows(), dy.cols());
    }
    if (!gate_images.wanted()) return;
    quantize(ctx, MatrixView(values).columns(0, dy.cols()), gate_images);
    return quantize(ctx, MatrixView(values).columns(dy.cols(), dy.cols()), up_images);
  }
  SourceParams s = plain_source(gate_up);
  s.kind = SourceKind::swiglu_grad;
  s.dy = dy.data;
  s.cols = dy.cols();
  s.value = d_gate_up.data;
  const QuantizedOut parts[] = {gate_images, up_images};
  quantize_source(ctx, s, parts);
}

}  // namespace octet::cuda
