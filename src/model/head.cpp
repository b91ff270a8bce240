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

Head::Head(Param& norm, Linear lm_head, int64_t vocab, float norm_eps, float z_coefficient, const TensorParallel& tp)
    : norm_(norm), lm_head_(std::move(lm_head)), vocab_(vocab), norm_eps_(norm_eps), z_coefficient_(z_coefficient), tp_(tp) {}

int64_t Head::chunk_rows(const Pass& pass, int64_t tokens) const {
  // A quantized head takes all tokens at once: its blocks and scales are those of the whole matrix. So does a dump, which wants one tensor.
  if (lm_head_.recipe().quantizes() || pass.dumps(lm_head_.module())) return tokens;
  return std::min(tokens, std::max<int64_t>(128, chunk_elements(pass.ctx.device()) / lm_head_.out_features() / 128 * 128));
}

LinearInput Head::normed_input(const Pass& pass, const Tensor& x, const Tensor& delta, const Tensor& sum, const Tensor& rstd, int64_t tokens, Linear::Reader reader) const {
  Arena& scratch = pass.ctx.scratch();
  const Pass temporary = pass.with_saved(scratch);
  LinearInput in = lm_head_.allocate_input(temporary, scratch, x.rows());
  ops::rmsnorm_quantize(pass.ctx, x, delta, norm_.working, norm_eps_, {sum, in.value, rstd, in.images});
  lm_head_.finish_input(temporary, scratch, in, tokens, reader);
  return in;
}

void Head::cross_entropy(const Pass& pass, const Tensor& logits, const Tensor& labels, const float* grad_scale, const Tensor& loss, const Tensor& z) const {
  Span span(pass.ctx.tracer, "head", "cross-entropy");
  if (tp_.alone()) return ops::cross_entropy(pass.ctx, logits, labels, vocab_, z_coefficient_, grad_scale, loss, z);
  const Param& weight = *lm_head_.parts().front().weight;
  Arena::Scope scope(pass.ctx.scratch());
  const Tensor parts = pass.ctx.scratch().alloc(Dtype::f32, {tp_.size, logits.rows(), 3});   // slice_rows folds the first two axes
  ops::softmax_parts(pass.ctx, logits, labels, weight.first_row, weight.logical_rows, parts.slice_rows(tp_.rank * logits.rows(), logits.rows()));
  tp_.gather_equal(pass.ctx, parts);
  ops::cross_entropy_of_parts(pass.ctx, logits, labels, weight.first_row, weight.logical_rows, parts, z_coefficient_, grad_scale, loss, z);
}

void Head::evaluate(const Pass& pass, const Tensor& x, const Tensor& delta, const Tensor& labels) const {
  Span span(pass.ctx.tracer, "head", "forward + loss");
  Arena& scratch = pass.ctx.scratch();
  Arena::Scope scope(scratch);
  const int64_t tokens = labels.elements(), chunk = chunk_rows(pass, tokens);
  const Tensor sum = scratch.alloc(x.dtype, x.shape);
  const Tensor loss = scratch.alloc(Dtype::f32, {tokens}), z = scratch.alloc(Dtype::f32, {tokens});
  const LinearInput in = normed_input(pass, x, delta, sum, {}, tokens, Linear::Reader::forward);
  const Tensor logits = scratch.alloc(x.dtype, {chunk, lm_head_.out_features()});
  for (int64_t t0 = 0; t0 < tokens; t0 += chunk) {
    const int64_t n = std::min(chunk, tokens - t0);
    LinearInput part = in;
    if (n != tokens) part.row = in.row.slice_rows(t0, n);
    const Tensor chunk_logits = logits.slice_rows(0, n);
    lm_head_.forward(pass, part, chunk_logits);
    cross_entropy(pass, chunk_logits, rows_of(labels, t0, n), nullptr, rows_of(loss, t0, n), rows_of(z, t0, n));
  }
  add_to_sums(pass, loss, z);
}

void Head::forward_backward(const Pass& pass, const Tensor& x, const Tensor& delta, const Tensor& labels, const float* grad_scale, const Tensor& grad) const {
  Span span(pass.ctx.tracer, "head", "forward + loss + backward");
  Arena& scratch = pass.ctx.scratch();
  Arena::Scope scope(scratch);
  const int64_t tokens = labels.elements(), chunk = chunk_rows(pass, tokens);
  const Tensor sum = scratch.alloc(x.dtype, x.shape), rstd = scratch.alloc(Dtype::f32, {x.rows()});
  const Tensor d_input = scratch.alloc(x.dtype, {tokens, x.cols()}), d_norm = tp_.sequence ? scratch.alloc(x.dtype, x.shape) : d_input;
  const Tensor loss = scratch.alloc(Dtype::f32, {tokens}), z = scratch.alloc(Dtype::f32, {tokens});
  const LinearInput in = normed_input(pass, x, delta, sum, rstd, tokens, Linear::Reader::all);
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
    cross_entropy(pass, d_logits, rows_of(labels, t0, n), grad_scale, rows_of(loss, t0, n), rows_of(z, t0, n));
    const LinearGrad dy = lm_head_.quantize_grad(pass, d_logits, n);
    lm_head_.partial_input_grad(pass, dy, d_input.slice_rows(t0, n));
    lm_head_.backward_weight(pass, dy, part, pass.writes_gradients() && t0 == 0);
  }
  if (!tp_.alone()) tp_.sum(pass.ctx, d_input, d_norm);
  ops::rmsnorm_backward(pass.ctx, d_norm, sum, norm_.working, rstd, {}, grad, norm_.grad);
  add_to_sums(pass, loss, z);
}

}  // namespace octet
