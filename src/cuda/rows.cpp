// Operators over rows and elements: from their arguments to the kernels of kernels/rows.h and kernels/state.h.
#include "cuda/kernels/rows.h"

#include <algorithm>
#include <vector>

#include "cuda/cuda_ops.h"
#include "cuda/device.h"
#include "cuda/kernels/rearrange.h"
#include "cuda/kernels/state.h"
#include "cuda/quantize.h"
#include "ops/attention.h"
#include "ops/embedding.h"
#include "ops/loss.h"
#include "ops/reduce.h"

namespace octet::cuda {
namespace {

bool wide(const Tensor& t) { return t.dtype == Dtype::f32; }
CUstream_st* stream(Ctx& ctx) { return ctx.cuda().stream(); }
uint16_t* words(const Tensor& t) { return static_cast<uint16_t*>(t.data); }

Rope rope_params(const Tensor& in, const Tensor& out, const Tensor& positions, const Tensor& cos_sin, const HeadGeometry& g, const QkNorm& norm) {
  OCTET_CHECK(g.head_dim <= 512, "rope: head_dim {} needs more shared memory than a block has, at most 512", g.head_dim);
  Rope p{};
  p.wide = wide(in);
  p.in = in.data;
  p.out = out.data;
  p.positions = positions.as<int32_t>();
  p.cos_sin = cos_sin.as<float>();
  p.rows = in.rows();
  p.heads = static_cast<int>(g.heads);
  p.kv_heads = static_cast<int>(g.kv_heads);
  p.head_dim = static_cast<int>(g.head_dim);
  p.rotary_dim = static_cast<int>(g.rotary_dim);
  p.eps = g.norm_eps;
  if (norm.gamma_q.shape.rank() != 0) {
    p.gamma_q = norm.gamma_q.data;
    p.gamma_k = norm.gamma_k.data;
    p.rstd = norm.rstd.as<float>();
  }
  return p;
}

}  // namespace

void rmsnorm_quantize(Ctx& ctx, const Tensor& x, const Tensor& delta, const Tensor& gamma, float eps, const RmsNormOut& out) {
  Arena::Scope scope(ctx.scratch());
  const bool wants_images = out.images.wanted();
  // The images read the norm through its statistics: rstd needs a place even when the caller does not keep it.
  const Tensor rstd = out.rstd.shape.rank() ? out.rstd : ctx.scratch().alloc(Dtype::f32, {x.rows()});
  const Tensor& s = delta.shape.rank() ? out.sum : x;
  if (!ctx.planning() && x.elements() != 0) {
    NormForward p{};
    p.wide = wide(x);
    p.x = x.data;
    p.delta = delta.data;
    p.gamma = gamma.data;
    p.sum = out.sum.data;
    p.y = wants_images ? nullptr : out.y.data;
    p.rstd = rstd.as<float>();
    p.eps = eps;
    p.rows = x.rows();
    p.cols = x.cols();
    launch_norm_forward(stream(ctx), p);
  }
  if (!wants_images) return;
  SourceParams source = plain_source(s);
  source.kind = SourceKind::norm;
  source.gamma = gamma.data;
  source.rstd = rstd.as<float>();
  source.value = out.y.data;
  quantize_source(ctx, source, out.images);
}

void rmsnorm_backward(Ctx& ctx, const Tensor& dy, const Tensor& s, const Tensor& gamma, const Tensor& rstd, const Tensor& d_residual, const Tensor& dx,
                      const Tensor& dgamma) {
  Arena::Scope scope(ctx.scratch());
  float* partial = ctx.scratch().alloc_array<float>(norm_backward_tiles(s.rows()) * s.cols());
  if (ctx.planning() || s.elements() == 0) return;
  launch_norm_backward(stream(ctx), {wide(s), dy.data, s.data, gamma.data, d_residual.data, rstd.as<float>(), dx.data, dgamma.as<float>(), partial, s.rows(), s.cols()});
}

void qk_norm_rope(Ctx& ctx, const Tensor& qkv, const Tensor& positions, const Tensor& cos_sin, const HeadGeometry& g, const QkNorm& norm, const Tensor& out) {
  if (ctx.planning() || qkv.elements() == 0) return;
  launch_rope_forward(stream(ctx), rope_params(qkv, out, positions, cos_sin, g, norm));
}

void qk_norm_rope_backward(Ctx& ctx, const Tensor& d_out, const Tensor& qkv, const Tensor& positions, const Tensor& cos_sin, const HeadGeometry& g, const QkNorm& norm,
                           const Tensor& d_qkv) {
  Arena::Scope scope(ctx.scratch());
  const bool normed = norm.gamma_q.shape.rank() != 0;
  float* partial = ctx.scratch().alloc_array<float>(normed ? rope_backward_tiles(d_out.rows()) * 2 * g.head_dim : 0);
  if (ctx.planning() || d_out.elements() == 0) return;
  Rope p = rope_params(d_out, d_qkv, positions, cos_sin, g, norm);
  p.source = qkv.data;
  p.partial = partial;
  if (normed) {
    p.dgamma_q = norm.dgamma_q.as<float>();
    p.dgamma_k = norm.dgamma_k.as<float>();
  }
  launch_rope_backward(stream(ctx), p);
}

void embedding(Ctx& ctx, const Tensor& table, const Tensor& tokens, const Tensor& out, int64_t first_row) {
  if (ctx.planning() || out.elements() == 0) return;
  OCTET_CHECK(table.dtype == out.dtype, "embedding: table {}, out {}", name(table.dtype), name(out.dtype));
  launch_embedding(stream(ctx), table.data, {first_row, table.rows()}, tokens.as<int32_t>(), out.data, tokens.elements(), table.cols() * static_cast<int64_t>(size_bytes(table.dtype)));
}

void embedding_backward(Ctx& ctx, const Tensor& d_out, const Tensor& tokens, const Tensor& d_table, int64_t first_row) {
  Arena::Scope scope(ctx.scratch());
  int32_t* chains = ctx.scratch().alloc_array<int32_t>(2 * tokens.elements());
  if (ctx.planning() || d_out.elements() == 0) return;
  launch_embedding_backward(stream(ctx), wide(d_out), d_out.data, tokens.as<int32_t>(), d_table.as<float>(), {first_row, d_table.rows()}, tokens.elements(), d_table.cols(), chains);
}

void cross_entropy(Ctx& ctx, const Tensor& logits, const Tensor& labels, int64_t vocab, float z_coefficient, const float* grad_scale, const Tensor& loss, const Tensor& z) {
  if (ctx.planning() || logits.elements() == 0) return;
  launch_cross_entropy(stream(ctx), {wide(logits), logits.data, labels.as<int32_t>(), loss.as<float>(), z.as<float>(), logits.rows(), logits.cols(), vocab, z_coefficient, grad_scale});
}

void softmax_parts(Ctx& ctx, const Tensor& logits, const Tensor& labels, int64_t first, int64_t columns, const Tensor& parts) {
  if (ctx.planning() || logits.rows() == 0) return;
  launch_softmax_parts(stream(ctx), {wide(logits), logits.data, labels.as<int32_t>(), parts.as<float>(), logits.rows(), logits.cols(), first, columns});
}

void cross_entropy_of_parts(Ctx& ctx, const Tensor& logits, const Tensor& labels, int64_t first, int64_t columns, const Tensor& parts, float z_coefficient,
                            const float* grad_scale, const Tensor& loss, const Tensor& z) {
  if (ctx.planning() || logits.rows() == 0) return;
  launch_cross_entropy(stream(ctx), {wide(logits), logits.data, labels.as<int32_t>(), loss.as<float>(), z.as<float>(), logits.rows(), logits.cols(), columns, z_coefficient, grad_scale,
                                     parts.as<float>(), parts.shape[0], first});
}

// As many tensors at a time as a table holds, which take the same scratch memory one after the other.
static void add_sums(Ctx& ctx, std::span<const Tensor> x, bool squares, double* totals) {
  for (size_t begin = 0; begin < x.size(); begin += SumTable::most) {
    Arena::Scope scope(ctx.scratch());
    SumTable table{};
    for (const Tensor& t : x.subspan(begin, std::min<size_t>(SumTable::most, x.size() - begin))) table.add(t.as<float>(), t.elements());
    double* partial = ctx.scratch().alloc_array<double>(table.tiles);
    if (!ctx.planning()) launch_sums(stream(ctx), table, squares, partial, totals + begin);
  }
}

void sum(Ctx& ctx, const Tensor& x, double* total) { add_sums(ctx, {&x, 1}, false, total); }
void sum_squares(Ctx& ctx, std::span<const Tensor> x, double* totals) { add_sums(ctx, x, true, totals); }

void column_sums(Ctx& ctx, const MatrixView& dy, const Tensor& d_bias) {
  if (ctx.planning() || dy.elements() == 0) return;
  launch_column_sums(stream(ctx), dy.dtype == Dtype::f32, dy.data, dy.ld, dy.rows, dy.cols, d_bias.as<float>());
}

void zero(Ctx& ctx, const Tensor& x) {
  if (!ctx.planning() && x.bytes()) {
    const MemorySource memory = ctx.cuda().memory();
    memory.fill(memory.user, x.data, 0, x.bytes());
  }
}

void copy(Ctx& ctx, const Tensor& from, const Tensor& to) {
  if (!ctx.planning()) ctx.cuda().copy_inside(to.data, from.data, from.bytes());
}

void add(Ctx& ctx, const Tensor& from, const Tensor& to) {
  if (!ctx.planning() && from.elements() != 0) launch_add(stream(ctx), from.as<float>(), to.as<float>(), from.elements());
}

void transpose(Ctx& ctx, const MatrixView& from, const MatrixView& to) {
  if (ctx.planning() || from.elements() == 0) return;
  launch_transpose(stream(ctx), {from.dtype == Dtype::f32, from.data, to.data, from.rows, from.cols, from.ld, to.ld});
}

void join_columns(Ctx& ctx, const MatrixView& parts, const MatrixView& whole) {
  if (ctx.planning() || whole.elements() == 0) return;
  const auto element = static_cast<int64_t>(size_bytes(whole.dtype));
  OCTET_CHECK(whole.elements() * element < int64_t{1} << 32, "join_columns: {}x{} elements of {} bytes, less than 4 GiB are counted", whole.rows, whole.cols, element);
  launch_join_columns(stream(ctx), {parts.data, whole.data, whole.rows, parts.rows / whole.rows, parts.cols * element, parts.ld * element, whole.ld * element});
}

void narrow_scales(Ctx& ctx, const Tensor& scale_inv, const Tensor& codes) {
  if (!ctx.planning() && codes.elements() != 0) launch_narrow_scales(stream(ctx), scale_inv.as<float>(), codes.as<uint8_t>(), codes.elements());
}

void widen_scales(Ctx& ctx, const Tensor& codes, const Tensor& scale_inv) {
  if (!ctx.planning() && codes.elements() != 0) launch_widen_scales(stream(ctx), codes.as<uint8_t>(), scale_inv.as<float>(), codes.elements());
}

static AdamwParams adamw_params(const Ctx& ctx, const AdamwUpdate& u, const AdamwStep& step, const StepControl* control) {
  const AdamwTensors& t = u.tensors;
  AdamwParams p{static_cast<float*>(t.master.data), words(t.remainder), t.m.data, t.v.data, t.grad.as<float>(), words(t.working), t.grad.elements(), element_numbers(t.place, t.grad.cols()),
                t.m.dtype == Dtype::bf16, ctx.seed, u.name_hash, ctx.key, step, control};
  p.step.weight_decay = u.weight_decay;
  return p;
}

void adamw(Ctx& ctx, std::span<const AdamwUpdate> updates, const AdamwStep& step, const StepControl* control) {
  if (ctx.planning()) return;
  std::vector<AdamwParams> tensors;
  for (const AdamwUpdate& u : updates) tensors.push_back(adamw_params(ctx, u, step, control));
  launch_adamw(stream(ctx), tensors);
}

void adamw_quantize(Ctx& ctx, const AdamwUpdate& update, const AdamwStep& step, const StepControl* control, const QuantizedOut& images) {
  const AdamwTensors& t = update.tensors;
  SourceParams s = plain_source(t.working.shape.rank() ? t.working : t.master);
  s.kind = SourceKind::adamw;
  s.adamw = adamw_params(ctx, update, step, control);
  quantize_source(ctx, s, images);
}

void decide_step(Ctx& ctx, const StepInputs& inputs, StepOutcome* outcome) {
  if (!ctx.planning()) launch_decide_step(stream(ctx), inputs, outcome);
}

void cast_weights(Ctx& ctx, const Tensor& master, const Tensor& working) {
  if (ctx.planning() || master.elements() == 0) return;
  launch_cast(stream(ctx), master.as<float>(), words(working), master.elements());
}

}  // namespace octet::cuda
