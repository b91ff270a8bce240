#include "model/block.h"

#include "core/trace.h"
#include "ops/activation.h"
#include "ops/attention.h"
#include "ops/norm.h"

namespace octet {
namespace {

// The pass as a stage sees it whose results are dropped after forward: they come from scratch instead of saved memory.
Pass with_temporary_results(const Pass& pass, bool dropped) {
  return dropped ? pass.with_saved(pass.ctx.scratch()) : pass;
}

// How gate and up wait for backward (recompute.swiglu_inputs).
QuantSpec kept_spec() { return block_spec(Dtype::e4m3, 1, 128); }

}  // namespace

Block::Block(BlockParams params, Linear qkv, Linear out, Linear gate_up, Linear down, HeadGeometry heads, RecomputePolicy recompute)
    : params_(params), qkv_(std::move(qkv)), out_(std::move(out)), gate_up_(std::move(gate_up)), down_(std::move(down)), heads_(heads), recompute_(recompute) {}

// Layer name of spans: "layers.0" of "layers.0.attn.qkv".
std::string_view Block::layer() const { return std::string_view(qkv_.module()).substr(0, qkv_.module().find(".attn")); }

std::vector<Param*> Block::params() const {
  std::vector<Param*> all{params_.attn_norm};
  const auto add = [&](const Linear& linear) {
    for (const Linear::Part& part : linear.parts()) {
      all.push_back(part.weight);
      if (part.bias) all.push_back(part.bias);
    }
  };
  add(qkv_);
  for (Param* p : {params_.q_norm, params_.k_norm}) {
    if (p) all.push_back(p);
  }
  add(out_);
  all.push_back(params_.mlp_norm);
  add(gate_up_);
  add(down_);
  return all;
}

// Scores and weighted sum, causal half, as config/model_size.h counts them; document masks, which skip more, are not subtracted.
double Block::attention_flops(const TokenGeometry& t) const {
  return 2.0 * static_cast<double>(t.tokens) * static_cast<double>(t.seq_len) * static_cast<double>(heads_.heads * heads_.head_dim);
}

QkNorm Block::qk_norm(const Tensor& rstd) const {
  if (!params_.q_norm) return {};
  return {params_.q_norm->working, params_.k_norm->working, rstd, params_.q_norm->grad, params_.k_norm->grad};
}

LinearInput Block::normed_input(const Pass& pass, const TokenGeometry& t, const Linear& consumer, const Param& gamma, const Tensor& x, const Tensor& delta, const Tensor& sum,
                                const Tensor& rstd, Linear::Reader reader) const {
  Span span(pass.ctx.tracer, consumer.module(), "norm + quantize x");
  LinearInput in = consumer.allocate_input(pass, pass.ctx.scratch(), x.rows());
  ops::rmsnorm_quantize(pass.ctx, x, delta, gamma.working, heads_.norm_eps, {sum, in.value, rstd, in.images});
  consumer.finish_input(pass, pass.ctx.scratch(), in, t.tokens, reader);
  return in;
}

LinearInput Block::swiglu_input(const Pass& pass, const Tensor& gate_up) const {
  Span span(pass.ctx.tracer, down_.module(), "swiglu + quantize x");
  LinearInput in = down_.allocate_input(pass, pass.ctx.scratch(), gate_up.rows());
  ops::swiglu_quantize(pass.ctx, gate_up, in.value, in.images);
  down_.finish_input(pass, pass.ctx.scratch(), in, gate_up.rows());
  return in;
}

// Gate and up are separate logical tensors: no block has elements of both.
void Block::keep_gate_up(const Pass& pass, BlockSaved& s) const {
  Span span(pass.ctx.tracer, gate_up_.module(), "keep gate and up in FP8");
  const int64_t tokens = s.gate_up.rows(), width = s.gate_up.cols() / 2;
  int64_t column = 0;
  for (Operand* image : {&s.gate, &s.up}) {
    *image = alloc_image(pass.saved, kept_spec(), tokens, width, false, gate_up_.image_layout());
    ops::quantize(pass.ctx, MatrixView(s.gate_up).columns(column, width), {kept_spec(), {}, *image, {}, {}});
    column += width;
  }
}

Tensor Block::kept_gate_up(const Pass& pass, const BlockSaved& s) const {
  if (!recompute_.swiglu_fp8) return s.gate_up;
  Span span(pass.ctx.tracer, gate_up_.module(), "gate and up from FP8");
  const Tensor gate_up = pass.ctx.scratch().alloc(s.gate_up.dtype, s.gate_up.shape);
  const int64_t width = gate_up.cols() / 2;
  ops::dequantize(pass.ctx, s.gate, MatrixView(gate_up).columns(0, width));
  ops::dequantize(pass.ctx, s.up, MatrixView(gate_up).columns(width, width));
  return gate_up;
}

LinearGrad Block::swiglu_grad(const Pass& pass, const Tensor& dy, const Tensor& gate_up) const {
  Span span(pass.ctx.tracer, gate_up_.module(), "swiglu backward + quantize dy");
  LinearGrad d = gate_up_.allocate_grad(pass, dy.rows());
  ops::swiglu_backward(pass.ctx, dy, gate_up, d.value, d.images[0], d.images[1]);
  gate_up_.finish_grad(pass, d);
  return d;
}

// Attention proper and the images of its output. Backward needs the output itself, so it is the input's value too.
LinearInput Block::attention_core(const Pass& pass, const TokenGeometry& t, BlockSaved& s) const {
  s.attn = pass.saved.alloc(s.qkv.dtype, {t.tokens, heads_.heads * heads_.head_dim});
  s.lse = pass.saved.alloc(Dtype::f32, {t.tokens / t.seq_len, heads_.heads, t.seq_len});
  Span span(pass.ctx.tracer, out_.module(), "attention + quantize x", {.flops = attention_flops(t)});
  LinearInput in = out_.input_of(pass, pass.ctx.scratch(), s.attn);
  ops::attention(pass.ctx, s.qkv, t.document_start, t.seq_len, heads_, s.attn, s.lse, in.images);
  out_.finish_input(pass, pass.ctx.scratch(), in, t.tokens);
  return in;
}

void Block::attention_forward(const Pass& pass, const TokenGeometry& t, const Tensor& x, const Tensor& delta, BlockSaved& s, const Tensor& attn_out) const {
  s.rstd1 = pass.saved.alloc(Dtype::f32, {x.rows()});
  const bool has_delta = delta.shape.rank() != 0;
  s.qkv = pass.saved.alloc(x.dtype, {t.tokens, heads_.qkv_width()});
  s.qkv_raw = params_.q_norm ? pass.saved.alloc(x.dtype, s.qkv.shape) : s.qkv;
  s.qk_rstd = params_.q_norm ? pass.saved.alloc(Dtype::f32, {t.tokens, heads_.heads + heads_.kv_heads}) : Tensor{};

  s.qkv_in = normed_input(with_temporary_results(pass, recompute_.norm), t, qkv_, *params_.attn_norm, x, delta, has_delta ? s.s1 : Tensor{}, s.rstd1);
  qkv_.forward(pass, s.qkv_in, s.qkv_raw);
  {
    Span span(pass.ctx.tracer, qkv_.module(), "rope");
    ops::qk_norm_rope(pass.ctx, s.qkv_raw, t.positions, t.cos_sin, heads_, qk_norm(s.qk_rstd), s.qkv);
  }
  s.out_in = attention_core(with_temporary_results(pass, recompute_.attention), t, s);
  out_.forward(pass, s.out_in, attn_out);
}

void Block::mlp_forward(const Pass& pass, const TokenGeometry& t, const Tensor& attn_out, BlockSaved& s, const Tensor& m) const {
  s.rstd2 = pass.saved.alloc(Dtype::f32, {attn_out.rows()});
  s.gate_up = (recompute_.swiglu_fp8 ? pass.ctx.scratch() : pass.saved).alloc(s.s1.dtype, {t.tokens, gate_up_.out_features()});
  s.gate_up_in = normed_input(with_temporary_results(pass, recompute_.norm), t, gate_up_, *params_.mlp_norm, s.s1, attn_out, s.s2, s.rstd2);
  gate_up_.forward(pass, s.gate_up_in, s.gate_up);
  s.down_in = swiglu_input(with_temporary_results(pass, recompute_.swiglu), s.gate_up);
  down_.forward(pass, s.down_in, m);
  if (recompute_.swiglu_fp8 && pass.backward) keep_gate_up(pass, s);
}

void Block::forward(const Pass& outer, const TokenGeometry& t, const Tensor& x, const Tensor& delta, BlockSaved& s, const Tensor& m) const {
  // The residual stream at both norms outlives the layer: s1 is what recomputation starts from, s2 is what the next norm reads.
  Span span(outer.ctx.tracer, layer(), "forward");
  s.s1 = delta.shape.rank() != 0 ? outer.saved.alloc(x.dtype, x.shape) : x;
  s.s2 = outer.saved.alloc(x.dtype, x.shape);
  Arena::Scope scope(outer.ctx.scratch());
  const Pass pass = with_temporary_results(outer, recompute_.block);
  const Tensor attn_out = pass.ctx.scratch().alloc(x.dtype, x.shape);
  attention_forward(pass, t, x, delta, s, attn_out);
  mlp_forward(pass, t, attn_out, s, m);
}

void Block::mlp_backward(const Pass& pass, const TokenGeometry& t, BlockSaved& s, const Tensor& grad) const {
  Arena::Scope scope(pass.ctx.scratch());
  Arena& scratch = pass.ctx.scratch();
  if (recompute_.norm && !recompute_.block) s.gate_up_in = normed_input(pass.recomputing(), t, gate_up_, *params_.mlp_norm, s.s2, {}, {}, {}, Linear::Reader::backward);
  const Tensor gate_up = kept_gate_up(pass, s);
  if (recompute_.swiglu && !recompute_.block) s.down_in = swiglu_input(pass.recomputing(), gate_up);
  const Tensor d_act = scratch.alloc(grad.dtype, {t.tokens, down_.in_features()});
  const Tensor d_norm = scratch.alloc(grad.dtype, grad.shape);
  {
    Arena::Scope images(scratch);
    const LinearGrad dm = down_.quantize_grad(pass, grad, t.tokens);
    RowSum sum = down_.backward_input(pass, dm, d_act);
    down_.backward_weight(pass, dm, s.down_in);
    sum.finish(pass.ctx);
  }
  {
    Arena::Scope images(scratch);
    const LinearGrad dg = swiglu_grad(pass, d_act, gate_up);
    const LinearInput x = gate_up_.input_again(pass, s.gate_up_in, t.tokens);
    RowSum sum = gate_up_.backward_input(pass, dg, d_norm);
    gate_up_.backward_weight(pass, dg, x);
    sum.finish(pass.ctx);
  }
  Span span(pass.ctx.tracer, gate_up_.module(), "norm backward");
  ops::rmsnorm_backward(pass.ctx, d_norm, s.s2, params_.mlp_norm->working, s.rstd2, grad, grad, params_.mlp_norm->grad);
}

void Block::attention_backward(const Pass& pass, const TokenGeometry& t, BlockSaved& s, const Tensor& grad) const {
  Arena::Scope scope(pass.ctx.scratch());
  Arena& scratch = pass.ctx.scratch();
  if (recompute_.norm && !recompute_.block) s.qkv_in = normed_input(pass.recomputing(), t, qkv_, *params_.attn_norm, s.s1, {}, {}, {}, Linear::Reader::backward);
  if (recompute_.attention && !recompute_.block) s.out_in = attention_core(pass.recomputing(), t, s);
  const Tensor d_attn = scratch.alloc(grad.dtype, s.attn.shape);
  const Tensor d_qkv = scratch.alloc(grad.dtype, s.qkv.shape);
  const Tensor d_norm = scratch.alloc(grad.dtype, grad.shape);
  {
    Arena::Scope images(scratch);
    const LinearGrad d_out = out_.quantize_grad(pass, grad, t.tokens);
    RowSum sum = out_.backward_input(pass, d_out, d_attn);
    out_.backward_weight(pass, d_out, s.out_in);
    sum.finish(pass.ctx);
  }
  {
    Span span(pass.ctx.tracer, out_.module(), "attention backward", {.flops = 2 * attention_flops(t)});
    ops::attention_backward(pass.ctx, d_attn, s.qkv, s.attn, s.lse, t.document_start, t.seq_len, heads_, d_qkv);
  }
  {
    Span span(pass.ctx.tracer, qkv_.module(), "rope backward");
    ops::qk_norm_rope_backward(pass.ctx, d_qkv, s.qkv_raw, t.positions, t.cos_sin, heads_, qk_norm(s.qk_rstd), d_qkv);
  }
  qkv_.sum_copies(pass, d_qkv);
  {
    Arena::Scope images(scratch);
    const LinearGrad dq = qkv_.quantize_grad(pass, d_qkv, t.tokens);
    const LinearInput x = qkv_.input_again(pass, s.qkv_in, t.tokens);
    RowSum sum = qkv_.backward_input(pass, dq, d_norm);
    qkv_.backward_weight(pass, dq, x);
    sum.finish(pass.ctx);
  }
  Span span(pass.ctx.tracer, qkv_.module(), "norm backward");
  ops::rmsnorm_backward(pass.ctx, d_norm, s.s1, params_.attn_norm->working, s.rstd1, grad, grad, params_.attn_norm->grad);
}

void Block::backward(const Pass& pass, const TokenGeometry& t, BlockSaved& s, const Tensor& grad) const {
  Arena::Scope scope(pass.ctx.scratch());
  Span span(pass.ctx.tracer, layer(), "backward");
  if (recompute_.block) {
    Span again_span(pass.ctx.tracer, layer(), "recompute");
    const Pass again = pass.recomputing();
    const Tensor attn_out = pass.ctx.scratch().alloc(grad.dtype, grad.shape), m = pass.ctx.scratch().alloc(grad.dtype, grad.shape);
    attention_forward(again, t, s.s1, {}, s, attn_out);
    mlp_forward(again, t, attn_out, s, m);
  }
  mlp_backward(pass, t, s, grad);
  attention_backward(pass, t, s, grad);
}

}  // namespace octet
