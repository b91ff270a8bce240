// Each operator checks its arguments once and forwards to the backend of the context's device, or, in a context with a shadow, to both (shadow_ops.h).
// While planning, operators only count their scratch memory.
#include <utility>

#include "core/check.h"
#include "cpu/cpu_ops.h"
#include "cuda/cuda_ops.h"
#include "ops/activation.h"
#include "ops/attention.h"
#include "ops/embedding.h"
#include "ops/gemm.h"
#include "ops/loss.h"
#include "ops/norm.h"
#include "ops/optimizer.h"
#include "ops/quantize.h"
#include "ops/reduce.h"
#include "ops/rope.h"
#include "ops/shadow_ops.h"

// OCTET_HAVE_CUDA: this library was compiled with the CUDA backend behind it; without, ops/machine.cpp makes no context of a GPU.
#ifdef OCTET_HAVE_CUDA
#define OCTET_FORWARD(op, ...)                                                                         \
  do {                                                                                                \
    if (ctx.shadow && !ctx.planning()) return shadow::op(__VA_ARGS__);                                \
    return ctx.device() == DeviceKind::cuda ? cuda::op(__VA_ARGS__) : cpu::op(__VA_ARGS__);           \
  } while (false)
#else
#define OCTET_FORWARD(op, ...) return cpu::op(__VA_ARGS__)
#endif

namespace octet::ops {
namespace {

void check_same(const char* op, const char* what, const Shape& a, const Shape& b) { OCTET_CHECK(a == b, "{}: {} is {}, {} expected", op, what, to_string(a), to_string(b)); }
void check_high_precision(const char* op, const char* what, Dtype d) { OCTET_CHECK(d == Dtype::bf16 || d == Dtype::f32, "{}: {} is {}, bf16 or f32 expected", op, what, name(d)); }
bool given(const Tensor& t) { return t.shape.rank() != 0; }

// stored_transposed: the image is a column image of the layout gemm.
void check_image(const char* op, const Operand& image, const QuantSpec& spec, int64_t rows, int64_t cols, bool stored_transposed) {
  if (image.data.rows == 0) return;
  if (stored_transposed) std::swap(rows, cols);
  OCTET_CHECK(spec.quantized(), "{}: an image was asked for but its spec is not quantized", op);
  OCTET_CHECK(image.data.dtype == spec.format && image.data.rows == rows && image.data.cols == cols && image.data.ld == cols, "{}: image is {} {}x{}, {} {}x{} expected", op,
              name(image.data.dtype), image.data.rows, image.data.cols, name(spec.format), rows, cols);
  check_same(op, "scale grid", image.scale_inv.shape, {block_count(rows, image.block_rows), block_count(cols, image.block_cols)});
}

void check_images(const char* op, const Ctx& ctx, const QuantizedOut& q, int64_t rows, int64_t cols) {
  for (const auto& [image, spec] : {std::pair{&q.row, &q.row_spec}, {&q.col, &q.col_spec}}) {
    OCTET_CHECK(image->data.rows == 0 || spec->rounding != Rounding::stochastic || ctx.key || ctx.planning(), "{}: stochastic rounding without a key", op);
  }
  for (const bool column : {false, true}) {
    const Tensor& amax = column ? q.col_amax : q.row_amax;
    if (given(amax)) check_same(op, "given amaxes", amax.shape, {shared_amax_count(column ? q.col_spec : q.row_spec, rows, cols, column)});
  }
  check_image(op, q.row, q.row_spec, rows, cols, false);
  check_image(op, q.col, q.col_spec, rows, cols, ctx.device() == DeviceKind::cuda);
}

void check_adamw(const char* op, const Ctx& ctx, const AdamwTensors& t) {
  const Shape& shape = t.grad.shape;
  OCTET_CHECK(given(t.master) != given(t.remainder), "{}: masters are f32, or halves of which the upper ones are the working weights", op);
  if (given(t.master)) check_same(op, "master", t.master.shape, shape);
  if (given(t.remainder)) check_same(op, "remainder", t.remainder.shape, shape);
  OCTET_CHECK(!given(t.remainder) || (given(t.working) && t.remainder.dtype == Dtype::u16), "{}: remainders are {}, u16 below working weights expected", op, name(t.remainder.dtype));
  if (given(t.working)) check_same(op, "working copy", t.working.shape, shape);
  OCTET_CHECK(t.grad.dtype == Dtype::f32 && (!given(t.master) || t.master.dtype == Dtype::f32), "{}: gradients are {}, masters {}, f32 expected", op, name(t.grad.dtype),
              given(t.master) ? name(t.master.dtype) : "halves");
  OCTET_CHECK(!given(t.working) || t.working.dtype == Dtype::bf16, "{}: working weights are {}, bf16 expected", op, name(t.working.dtype));
  const MatrixPlace& p = t.place;
  OCTET_CHECK(p.first_row >= 0 && p.first_column >= 0 && p.first_column + shape.cols() <= (p.columns == 0 ? shape.cols() : p.columns),
              "{}: {} columns from row {}, column {} on, of {} in the whole", op, shape.cols(), p.first_row, p.first_column, p.columns);
  for (const Tensor* moment : {&t.m, &t.v}) check_same(op, "moment", moment->shape, shape);
  check_high_precision(op, "moment", t.m.dtype);
  OCTET_CHECK(t.m.dtype == Dtype::f32 || ctx.key || ctx.planning(), "{}: moments are rounded stochastically, without a key", op);
  OCTET_CHECK(t.m.dtype == t.v.dtype, "{}: moments of {} and {}", op, name(t.m.dtype), name(t.v.dtype));
}

}  // namespace

void quantize(Ctx& ctx, const MatrixView& x, const QuantizedOut& out) {
  check_high_precision("quantize", "x", x.dtype);
  check_images("quantize", ctx, out, x.rows, x.cols);
  OCTET_FORWARD(quantize, ctx, x, out);
}

void shared_amaxes(Ctx& ctx, const MatrixView& x, const QuantSpec& spec, bool column, const Tensor& amax) {
  check_high_precision("shared_amaxes", "x", x.dtype);
  check_same("shared_amaxes", "amax", amax.shape, {shared_amax_count(spec, x.rows, x.cols, column)});
  OCTET_FORWARD(shared_amaxes, ctx, x, spec, column, amax);
}

void dequantize(Ctx& ctx, const Operand& image, const MatrixView& out) {
  check_high_precision("dequantize", "out", out.dtype);
  OCTET_CHECK(image.quantized() && image.data.rows == out.rows && image.data.cols == out.cols, "dequantize: {} {}x{} to {}x{}", name(image.data.dtype), image.data.rows, image.data.cols,
              out.rows, out.cols);
  OCTET_FORWARD(dequantize, ctx, image, out);
}

void gemm(Ctx& ctx, std::span<const GemmTerm> terms, const MatrixView& out, float beta, Accumulate accumulate, const Tensor& bias) {
  OCTET_CHECK(!terms.empty(), "gemm: no terms");
  for (const GemmTerm& t : terms) {
    OCTET_CHECK(t.a.rows() == out.rows && t.b.rows() == out.cols && t.a.k() == t.b.k(), "gemm: [{}, {}] = [{}, {}] . [{}, {}]^T", out.rows, out.cols, t.a.rows(), t.a.k(),
                t.b.rows(), t.b.k());
    OCTET_CHECK(t.a.quantized() == t.b.quantized(), "gemm: {} by {}", name(t.a.data.dtype), name(t.b.data.dtype));
    OCTET_CHECK(t.a.quantized() == terms.front().a.quantized(), "gemm: a term of {} beside one of {}", name(t.a.data.dtype), name(terms.front().a.data.dtype));
  }
  OCTET_CHECK(beta == 0.0f || (beta == 1.0f && out.dtype == Dtype::f32), "gemm: beta {} into {}", beta, name(out.dtype));
  check_high_precision("gemm", "out", out.dtype);
  if (given(bias)) OCTET_CHECK(bias.elements() == out.cols, "gemm: bias has {} elements, {} expected", bias.elements(), out.cols);
  OCTET_FORWARD(gemm, ctx, terms, out, beta, accumulate, bias);
}

void rmsnorm_quantize(Ctx& ctx, const Tensor& x, const Tensor& delta, const Tensor& gamma, float eps, const RmsNormOut& out) {
  OCTET_CHECK(gamma.elements() == x.cols(), "rmsnorm: gamma has {} elements, {} expected", gamma.elements(), x.cols());
  if (given(delta)) check_same("rmsnorm", "delta", delta.shape, x.shape);
  OCTET_CHECK(!given(delta) || given(out.sum), "rmsnorm: a residual addition needs an output for the sum");
  if (given(out.sum)) check_same("rmsnorm", "sum", out.sum.shape, x.shape);
  if (given(out.y)) check_same("rmsnorm", "y", out.y.shape, x.shape);
  if (given(out.rstd)) check_same("rmsnorm", "rstd", out.rstd.shape, {x.rows()});
  check_images("rmsnorm", ctx, out.images, x.rows(), x.cols());
  OCTET_FORWARD(rmsnorm_quantize, ctx, x, delta, gamma, eps, out);
}

void rmsnorm_backward(Ctx& ctx, const Tensor& dy, const Tensor& s, const Tensor& gamma, const Tensor& rstd, const Tensor& d_residual, const Tensor& dx,
                      const Tensor& dgamma) {
  check_same("rmsnorm_backward", "dy", dy.shape, s.shape);
  check_same("rmsnorm_backward", "dx", dx.shape, s.shape);
  if (given(d_residual)) check_same("rmsnorm_backward", "d_residual", d_residual.shape, s.shape);
  OCTET_CHECK(gamma.elements() == s.cols() && dgamma.elements() == s.cols() && rstd.elements() == s.rows(), "rmsnorm_backward: gamma {}, dgamma {}, rstd {} for {}", gamma.elements(),
              dgamma.elements(), rstd.elements(), to_string(s.shape));
  OCTET_FORWARD(rmsnorm_backward, ctx, dy, s, gamma, rstd, d_residual, dx, dgamma);
}

void swiglu_quantize(Ctx& ctx, const Tensor& gate_up, const Tensor& y, const QuantizedOut& images) {
  if (given(y)) check_same("swiglu", "y", y.shape, {gate_up.rows(), gate_up.cols() / 2});
  check_images("swiglu", ctx, images, gate_up.rows(), gate_up.cols() / 2);
  OCTET_FORWARD(swiglu_quantize, ctx, gate_up, y, images);
}

void swiglu_backward(Ctx& ctx, const Tensor& dy, const Tensor& gate_up, const Tensor& d_gate_up, const QuantizedOut& gate_images, const QuantizedOut& up_images) {
  if (given(d_gate_up)) check_same("swiglu_backward", "d_gate_up", d_gate_up.shape, gate_up.shape);
  check_same("swiglu_backward", "dy", dy.shape, {gate_up.rows(), gate_up.cols() / 2});
  OCTET_CHECK(gate_images.wanted() == up_images.wanted(), "swiglu_backward: images of the {} alone", gate_images.wanted() ? "gate" : "up half");
  OCTET_CHECK(given(d_gate_up) || gate_images.wanted(), "swiglu_backward: neither values nor images are wanted{}", "");
  for (const QuantizedOut* images : {&gate_images, &up_images}) check_images("swiglu_backward", ctx, *images, dy.rows(), dy.cols());
  OCTET_FORWARD(swiglu_backward, ctx, dy, gate_up, d_gate_up, gate_images, up_images);
}

void qk_norm_rope(Ctx& ctx, const Tensor& qkv, const Tensor& positions, const Tensor& cos_sin, const HeadGeometry& g, const QkNorm& norm, const Tensor& out) {
  check_same("qk_norm_rope", "qkv", qkv.shape, {qkv.rows(), g.qkv_width()});
  check_same("qk_norm_rope", "out", out.shape, qkv.shape);
  OCTET_CHECK(positions.elements() == qkv.rows() && cos_sin.cols() == g.rotary_dim, "qk_norm_rope: {} positions for {} tokens, table width {} for {}", positions.elements(), qkv.rows(),
              cos_sin.cols(), g.rotary_dim);
  OCTET_FORWARD(qk_norm_rope, ctx, qkv, positions, cos_sin, g, norm, out);
}

void qk_norm_rope_backward(Ctx& ctx, const Tensor& d_out, const Tensor& qkv, const Tensor& positions, const Tensor& cos_sin, const HeadGeometry& g, const QkNorm& norm,
                           const Tensor& d_qkv) {
  check_same("qk_norm_rope_backward", "d_qkv", d_qkv.shape, d_out.shape);
  if (given(norm.gamma_q)) check_same("qk_norm_rope_backward", "qkv", qkv.shape, d_out.shape);
  OCTET_FORWARD(qk_norm_rope_backward, ctx, d_out, qkv, positions, cos_sin, g, norm, d_qkv);
}

void attention(Ctx& ctx, const Tensor& qkv, const Tensor& document_start, int64_t seq_len, const HeadGeometry& g, const Tensor& out, const Tensor& lse,
               const QuantizedOut& images) {
  OCTET_CHECK(seq_len > 0 && qkv.rows() % seq_len == 0, "attention: {} tokens are no whole samples of {}", qkv.rows(), seq_len);
  OCTET_CHECK(g.kv_heads > 0 && g.heads % g.kv_heads == 0, "attention: {} query heads over {} key-value heads", g.heads, g.kv_heads);
  OCTET_CHECK(!given(document_start) || document_start.elements() == qkv.rows(), "attention: {} document starts for {} tokens", document_start.elements(), qkv.rows());
  check_same("attention", "qkv", qkv.shape, {qkv.rows(), g.qkv_width()});
  check_same("attention", "out", out.shape, {qkv.rows(), g.heads * g.head_dim});
  check_same("attention", "lse", lse.shape, {qkv.rows() / seq_len, g.heads, seq_len});
  check_images("attention", ctx, images, out.rows(), out.cols());
  OCTET_FORWARD(attention, ctx, qkv, document_start, seq_len, g, out, lse, images);
}

void attention_backward(Ctx& ctx, const Tensor& d_out, const Tensor& qkv, const Tensor& out, const Tensor& lse, const Tensor& document_start, int64_t seq_len,
                        const HeadGeometry& g, const Tensor& d_qkv) {
  check_same("attention_backward", "d_out", d_out.shape, out.shape);
  check_same("attention_backward", "d_qkv", d_qkv.shape, qkv.shape);
  OCTET_FORWARD(attention_backward, ctx, d_out, qkv, out, lse, document_start, seq_len, g, d_qkv);
}

void embedding(Ctx& ctx, const Tensor& table, const Tensor& tokens, const Tensor& out, int64_t first_row) {
  check_same("embedding", "out", out.shape, {tokens.elements(), table.cols()});
  OCTET_FORWARD(embedding, ctx, table, tokens, out, first_row);
}

void embedding_backward(Ctx& ctx, const Tensor& d_out, const Tensor& tokens, const Tensor& d_table, int64_t first_row) {
  check_same("embedding_backward", "d_out", d_out.shape, {tokens.elements(), d_table.cols()});
  OCTET_FORWARD(embedding_backward, ctx, d_out, tokens, d_table, first_row);
}

void cross_entropy(Ctx& ctx, const Tensor& logits, const Tensor& labels, int64_t vocab, float z_coefficient, const float* grad_scale, const Tensor& loss, const Tensor& z) {
  OCTET_CHECK(vocab > 0 && vocab <= logits.cols() && labels.elements() == logits.rows() && loss.elements() == logits.rows() && z.elements() == logits.rows(),
              "cross_entropy: vocabulary {} of {} columns, {} labels for {} rows", vocab, logits.cols(), labels.elements(), logits.rows());
  OCTET_FORWARD(cross_entropy, ctx, logits, labels, vocab, z_coefficient, grad_scale, loss, z);
}

static void check_shard(const char* op, const Tensor& logits, const Tensor& labels, int64_t first, int64_t columns) {
  OCTET_CHECK(first >= 0 && columns >= 0 && columns <= logits.cols() && labels.elements() == logits.rows(), "{}: {} columns from {} on in {}, {} labels for {} rows", op, columns, first,
              logits.cols(), labels.elements(), logits.rows());
  check_high_precision(op, "logits", logits.dtype);
}

void softmax_parts(Ctx& ctx, const Tensor& logits, const Tensor& labels, int64_t first, int64_t columns, const Tensor& parts) {
  check_shard("softmax_parts", logits, labels, first, columns);
  check_same("softmax_parts", "parts", parts.shape, {logits.rows(), 3});
  OCTET_FORWARD(softmax_parts, ctx, logits, labels, first, columns, parts);
}

void cross_entropy_of_parts(Ctx& ctx, const Tensor& logits, const Tensor& labels, int64_t first, int64_t columns, const Tensor& parts, float z_coefficient,
                            const float* grad_scale, const Tensor& loss, const Tensor& z) {
  check_shard("cross_entropy_of_parts", logits, labels, first, columns);
  OCTET_CHECK(parts.shape.rank() == 3 && parts.shape[0] > 0, "cross_entropy_of_parts: parts are {}, [shards, rows, 3] expected", to_string(parts.shape));
  check_same("cross_entropy_of_parts", "parts", parts.shape, {parts.shape[0], logits.rows(), 3});
  OCTET_CHECK(loss.elements() == logits.rows() && z.elements() == logits.rows(), "cross_entropy_of_parts: {} losses, {} z for {} rows", loss.elements(), z.elements(), logits.rows());
  OCTET_FORWARD(cross_entropy_of_parts, ctx, logits, labels, first, columns, parts, z_coefficient, grad_scale, loss, z);
}

void sum(Ctx& ctx, const Tensor& x, double* total) { OCTET_FORWARD(sum, ctx, x, total); }
void sum_squares(Ctx& ctx, std::span<const Tensor> x, double* totals) {
  for (const Tensor& t : x) OCTET_CHECK(t.dtype == Dtype::f32, "sum_squares: {}, f32 expected", name(t.dtype));
  OCTET_FORWARD(sum_squares, ctx, x, totals);
}

void column_sums(Ctx& ctx, const MatrixView& dy, const Tensor& d_bias) {
  OCTET_CHECK(d_bias.elements() == dy.cols, "column_sums: {} sums for {} columns", d_bias.elements(), dy.cols);
  OCTET_FORWARD(column_sums, ctx, dy, d_bias);
}

void zero(Ctx& ctx, const Tensor& x) { OCTET_FORWARD(zero, ctx, x); }

void copy(Ctx& ctx, const Tensor& from, const Tensor& to) {
  check_same("copy", "to", to.shape, from.shape);
  OCTET_CHECK(from.dtype == to.dtype, "copy: {} to {}", name(from.dtype), name(to.dtype));
  OCTET_FORWARD(copy, ctx, from, to);
}

void add(Ctx& ctx, const Tensor& from, const Tensor& to) {
  check_same("add", "to", to.shape, from.shape);
  OCTET_CHECK(from.dtype == Dtype::f32 && to.dtype == Dtype::f32, "add: {} to {}, f32 expected", name(from.dtype), name(to.dtype));
  OCTET_FORWARD(add, ctx, from, to);
}

void transpose(Ctx& ctx, const MatrixView& from, const MatrixView& to) {
  OCTET_CHECK(from.dtype == to.dtype && (size_bytes(from.dtype) == 1 || from.dtype == Dtype::f32), "transpose: {} to {}, codes or f32 expected", name(from.dtype), name(to.dtype));
  OCTET_CHECK(from.rows == to.cols && from.cols == to.rows, "transpose: {}x{} to {}x{}", from.rows, from.cols, to.rows, to.cols);
  OCTET_FORWARD(transpose, ctx, from, to);
}

void join_columns(Ctx& ctx, const MatrixView& parts, const MatrixView& whole) {
  OCTET_CHECK(parts.dtype == whole.dtype, "join_columns: {} to {}", name(parts.dtype), name(whole.dtype));
  OCTET_CHECK(parts.elements() == whole.elements() && (parts.cols == 0 || whole.cols % parts.cols == 0), "join_columns: parts {}x{} to {}x{}", parts.rows, parts.cols, whole.rows, whole.cols);
  OCTET_FORWARD(join_columns, ctx, parts, whole);
}

static void check_scales(const char* op, const Tensor& scale_inv, const Tensor& codes) {
  OCTET_CHECK(scale_inv.elements() == codes.elements() && scale_inv.dtype == Dtype::f32 && codes.dtype == Dtype::e8m0, "{}: {} {} and {} {}, as many f32 and e8m0 expected", op, scale_inv.elements(),
              name(scale_inv.dtype), codes.elements(), name(codes.dtype));
}

void narrow_scales(Ctx& ctx, const Tensor& scale_inv, const Tensor& codes) {
  check_scales("narrow_scales", scale_inv, codes);
  OCTET_FORWARD(narrow_scales, ctx, scale_inv, codes);
}

void widen_scales(Ctx& ctx, const Tensor& codes, const Tensor& scale_inv) {
  check_scales("widen_scales", scale_inv, codes);
  OCTET_FORWARD(widen_scales, ctx, codes, scale_inv);
}

void adamw(Ctx& ctx, std::span<const AdamwUpdate> updates, const AdamwStep& step, const StepControl* control) {
  for (const AdamwUpdate& u : updates) check_adamw("adamw", ctx, u.tensors);
  OCTET_FORWARD(adamw, ctx, updates, step, control);
}

void adamw_quantize(Ctx& ctx, const AdamwUpdate& update, const AdamwStep& step, const StepControl* control, const QuantizedOut& images) {
  const Shape& shape = update.tensors.grad.shape;
  check_adamw("adamw_quantize", ctx, update.tensors);
  OCTET_CHECK(images.wanted(), "adamw_quantize: no images are wanted{}", "");
  check_images("adamw_quantize", ctx, images, shape.rows(), shape.cols());
  OCTET_FORWARD(adamw_quantize, ctx, update, step, control, images);
}

void decide_step(Ctx& ctx, const StepInputs& inputs, StepOutcome* outcome) { OCTET_FORWARD(decide_step, ctx, inputs, outcome); }

void cast_weights(Ctx& ctx, const Tensor& master, const Tensor& working) {
  check_same("cast_weights", "working copy", working.shape, master.shape);
  OCTET_FORWARD(cast_weights, ctx, master, working);
}

}  // namespace octet::ops
