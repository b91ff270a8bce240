#include "model/head.h"

#include <algorithm>

#include "core/trace.h"
#include "ops/loss.h"
#include "ops/norm.h"
#include "ops/reduce.h"

namespace octet {
namespace {

// Logits of a chunk, in elements. A CPU wants them in its caches: 32 MiB of BF16. A GPU wants products that fill it: 512 MiB; with 128 rows at a time the head of
// Llama-3-8B took 137 ms of a step on an H200 instead of 40 (docs/benchmarks/hopper.md).
int64_t chunk_elements(DeviceKind device) { return device == DeviceKind::cuda ? int64_t{1} << 28 : int64_t{1} << 24; }

Tensor rows_of(const Tensor& vector, int64_t begin, int64_t count) {
  Tensor t = vector;
  t.shape = {count};
  if (t.data) t.data = static_cast<char*>(t.data) + static_cast<size_t>(begin) * size_bytes(t.dtype);
  return t;
}

Operand slice_k(const Operand& o, int64_t begin, int64_t count) {
  // A column operand of unquantized data is stored [T, K]: a range of the contraction is a range of stored rows.
  return o.flipped().slice_rows(begin, count).flipped();
}

void add_to_sums(const Pass& pass, const Tensor& loss, const Tensor& z) {
  ops::sum(pass.ctx, loss, pass.loss_sums);
  ops::sum(pass.ctx, z, pass.loss_sums ? pass.loss_sums + 1 : nullptr);
}

}  // namespace

Head::Head(Param& norm, Linear lm_head, int64_t vocab, float norm_eps, float z_coefficient)
    : norm_(norm), lm_head_(std::move(lm_head)), vocab_(vocab), norm_eps_(norm_eps), z_coefficient_(z_coefficient) {}

int64_t Head::chunk_rows(const Pass& pass, int64_t tokens) const {
  // A quantized head takes all tokens at once: its blocks and scales are those of the whole matrix. So does a dump, which wants one tensor.
  if (lm_head_.recipe().quantizes() || pass.dumps(lm_head_.module())) return tokens;
  return std::min(tokens, std::max<int64_t>(128, chunk_elements(pass.ctx.device()) / lm_head_.out_features() / 128 * 128));
}

void Head::evaluate(const Pass& pass, const Tensor& x, const Tensor& delta, const Tensor& labels) const {
  Span span(pass.ctx.tracer, "head", "forward + loss");
  Arena& scratch = pass.ctx.scratch();
  Arena::Scope scope(scratch);
  const int64_t tokens = x.rows(), chunk = chunk_rows(pass, tokens);
  const Tensor sum = scratch.alloc(x.dtype, x.shape);
  const Tensor loss = scratch.alloc(Dtype::f32, {tokens}), z = scratch.alloc(Dtype::f32, {tokens});
  const Pass temporary = pass.with_saved(scratch);
  LinearInput in = lm_head_.allocate_input(temporary, scratch, tokens);
  ops::rmsnorm_quantize(pass.ctx, x, delta, norm_.working, norm_eps_, {sum, in.value, {}, in.images});
  const Tensor logits = scratch.alloc(x.dtype, {chunk, lm_head_.out_features()});
  for (int64_t t0 = 0; t0 < tokens; t0 += chunk) {
    const int64_t n = std::min(chunk, tokens - t0);
    LinearInput part = in;
    if (n != tokens) part.row = in.row.slice_rows(t0, n);
    const Tensor chunk_logits = logits.slice_rows(0, n);
    lm_head_.forward(pass, part, chunk_logits);
    ops::cross_entropy(pass.ctx, chunk_logits, rows_of(labels, t0, n), vocab_, z_coefficient_, nullptr, rows_of(loss, t0, n), rows_of(z, t0, n));
  }
  add_to_sums(pass, loss, z);
}

void Head::forward_backward(const Pass& pass, const Tensor& x, const Tensor& delta, const Tensor& labels, const float* grad_scale, const Tensor& grad) const {
  Span span(pass.ctx.tracer, "head", "forward + loss + backward");
  Arena& scratch = pass.ctx.scratch();
  Arena::Scope scope(scratch);
  const int64_t tokens = x.rows(), chunk = chunk_rows(pass, tokens);
  const Tensor sum = scratch.alloc(x.dtype, x.shape), rstd = scratch.alloc(Dtype::f32, {tokens}), d_norm = scratch.alloc(x.dtype, x.shape);
  const Tensor loss = scratch.alloc(Dtype::f32, {tokens}), z = scratch.alloc(Dtype::f32, {tokens});
  const Pass temporary = pass.with_saved(scratch);
  LinearInput in = lm_head_.allocate_input(temporary, scratch, tokens);
  ops::rmsnorm_quantize(pass.ctx, x, delta, norm_.working, norm_eps_, {sum, in.value, rstd, in.images});
  lm_head_.note_input(pass, in);
  const Tensor logits = scratch.alloc(x.dtype, {chunk, lm_head_.out_features()});
  for (int64_t t0 = 0; t0 < tokens; t0 += chunk) {
    Arena::Scope chunk_scope(scratch);
    const int64_t n = std::min(chunk, tokens - t0);
    LinearInput part = in;
    if (n != tokens) {
      part.row = in.row.slice_rows(t0, n);
      part.col = slice_k(in.col, t0, n);
    }
    const Tensor d_logits = logits.slice_rows(0, n);
    lm_head_.forward(pass, part, d_logits);
    {
      Span loss_span(pass.ctx.tracer, "head", "cross-entropy");
      ops::cross_entropy(pass.ctx, d_logits, rows_of(labels, t0, n), vocab_, z_coefficient_, grad_scale, rows_of(loss, t0, n), rows_of(z, t0, n));
    }
    const LinearGrad dy = lm_head_.quantize_grad(pass, d_logits);
    lm_head_.backward_input(pass, dy, d_norm.slice_rows(t0, n));
    lm_head_.backward_weight(pass, dy, part, pass.writes_gradients() && t0 == 0);
  }
  ops::rmsnorm_backward(pass.ctx, d_norm, sum, norm_.working, rstd, {}, grad, norm_.grad);
  add_to_sums(pass, loss, z);
}

}  // namespace octet
