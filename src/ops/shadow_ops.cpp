#include "ops/shadow_ops.h"

#ifdef OCTET_HAVE_CUDA
#include <fmt/format.h>

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "cuda/cuda_ops.h"
#include "cuda/device.h"
#include "cuda/gemm/plans.h"
#include "ops/mirror.h"

namespace octet::shadow {
namespace {

constexpr Tolerance exact{};
// One rounding of the result beside a share of its largest value.
constexpr Tolerance rounded(double relative, double least = 0) { return {.relative = relative, .ulps = 1, .least = least}; }

bool given(const Tensor& t) { return t.shape.rank() != 0; }

// FP32 sums in another order; FP8 tensor cores keep fewer bits of them, fewer still when they may be fast. Emulated products round decoded operands to BF16.
Tolerance of_product(const Ctx& ctx, std::span<const GemmTerm> terms, const MatrixView& out, Accumulate accumulate) {
  bool coarse = accumulate == Accumulate::fast && terms.front().a.quantized();
  for (const GemmTerm& t : terms) coarse |= !cuda::why_emulated(cuda::problem_of(t, out, 0.0f, accumulate, {}), ctx.capability).empty();
  return rounded(coarse ? 5e-3 : out.dtype == Dtype::bf16 || terms.front().a.quantized() ? 2e-3 : 1e-3);
}

Mirrored<QkNorm> mirrored(Mirror& m, const QkNorm& n, bool backward) {
  QkNorm host{m.in(n.gamma_q).host, m.in(n.gamma_k).host, {}, {}, {}};
  host.rstd = (backward ? m.in(n.rstd) : m.out("rstd", n.rstd, rounded(2e-7))).host;
  host.dgamma_q = (backward ? m.out("dgamma_q", n.dgamma_q, rounded(1e-5)) : m.in(n.dgamma_q)).host;
  host.dgamma_k = (backward ? m.out("dgamma_k", n.dgamma_k, rounded(1e-5)) : m.in(n.dgamma_k)).host;
  return {n, host};
}

// The tensor family rounds P and dS to BF16.
bool tensor_attention(const Tensor& qkv, const HeadGeometry& g) { return qkv.dtype == Dtype::bf16 && g.head_dim % 16 == 0 && g.head_dim <= 256; }

// Operators over all parameters of a model: neighbouring ones together, as many as leave the host its memory.
template <class T, class Bytes, class Work>
void in_parts(std::span<const T> all, const Bytes& bytes_of, const Work& work) {
  constexpr size_t most_bytes = size_t{1} << 30;
  for (size_t begin = 0, end = 0; begin < all.size(); begin = end) {
    for (size_t bytes = 0; end < all.size() && (end == begin || bytes + bytes_of(all[end]) <= most_bytes); ++end) bytes += bytes_of(all[end]);
    work(all.subspan(begin, end - begin), begin);
  }
}

size_t state_bytes(const AdamwUpdate& u) {
  size_t bytes = 0;
  for (const Tensor* t : {&u.tensors.master, &u.tensors.remainder, &u.tensors.m, &u.tensors.v, &u.tensors.grad, &u.tensors.working}) bytes += given(*t) ? t->bytes() : 0;
  return bytes;
}

// `which`: behind the names of its tensors.
Mirrored<AdamwUpdate> mirrored(Mirror& m, const AdamwUpdate& u, const std::string& which) {
  const AdamwTensors& t = u.tensors;
  AdamwUpdate host = u;
  host.tensors = {m.out("master" + which, t.master).host, m.out("remainder" + which, t.remainder).host, m.out("m" + which, t.m).host, m.out("v" + which, t.v).host, m.in(t.grad).host,
                  m.out("working" + which, t.working).host, t.place};
  return {u, host};
}

template <class T>
Mirrored<T> columns_of(const Mirrored<T>& m, int64_t begin, int64_t count) { return {m.device.columns(begin, count), m.host.columns(begin, count)}; }

}  // namespace

void quantize(Ctx& ctx, const MatrixView& x, const QuantizedOut& out) {
  Mirror m(ctx, "quantize");
  m.run(cuda::quantize, cpu::quantize, m.in(x), m.out("", out));
}

void shared_amaxes(Ctx& ctx, const MatrixView& x, const QuantSpec& spec, bool column, const Tensor& amax) {
  Mirror m(ctx, "shared_amaxes");
  m.run(cuda::shared_amaxes, cpu::shared_amaxes, m.in(x), spec, column, m.out("amax", amax));
}

void dequantize(Ctx& ctx, const Operand& image, const MatrixView& out) {
  Mirror m(ctx, "dequantize");
  m.run(cuda::dequantize, cpu::dequantize, m.in(image), m.out("out", out));
}

void gemm(Ctx& ctx, std::span<const GemmTerm> terms, const MatrixView& out, float beta, Accumulate accumulate, const Tensor& bias) {
  Mirror m(ctx, "gemm");
  std::vector<GemmTerm> host;
  for (const GemmTerm& t : terms) host.push_back({m.in(t.a).host, m.in(t.b).host});
  const Mirrored<std::span<const GemmTerm>> both{terms, host};
  m.run(cuda::gemm, cpu::gemm, both, m.out("out", out, of_product(ctx, terms, out, accumulate)), beta, accumulate, m.in(bias));
}

// A norm may be off by a rounding, and its images with it: they are compared with the CPU's of the values that the GPU's norm has.
void rmsnorm_quantize(Ctx& ctx, const Tensor& x, const Tensor& delta, const Tensor& gamma, float eps, const RmsNormOut& out) {
  Mirror m(ctx, "rmsnorm_quantize");
  std::optional<Arena> memory;   // of the device, for values that the caller does not want
  RmsNormOut values = out;
  values.images = {};
  if (!given(out.y)) {
    memory.emplace(x.bytes(), ctx.cuda().memory(), false);
    values.y = memory->alloc(x.dtype, x.shape);
  }
  const auto on_device = [&](Ctx& device, const Tensor& s, const Tensor& d, const Tensor& g, const RmsNormOut& written, const QuantizedOut&) {
    if (memory) cuda::rmsnorm_quantize(device, s, d, g, eps, written);
    cuda::rmsnorm_quantize(device, s, d, g, eps, out);
  };
  const auto on_host = [&](Ctx& host, const Tensor& s, const Tensor& d, const Tensor& g, const RmsNormOut& written, const QuantizedOut& images) {
    cpu::rmsnorm_quantize(host, s, d, g, eps, written);
    if (images.wanted()) cpu::quantize(host, m.in(values.y).host, images);
  };
  const RmsNormOut host{m.out("sum", out.sum).host, m.out("y", values.y, rounded(1e-6)).host, m.out("rstd", out.rstd, rounded(1e-6)).host, {}};
  m.run(on_device, on_host, m.in(x), m.in(delta), m.in(gamma), Mirrored<RmsNormOut>{values, host}, m.out("", out.images));
}

void rmsnorm_backward(Ctx& ctx, const Tensor& dy, const Tensor& s, const Tensor& gamma, const Tensor& rstd, const Tensor& d_residual, const Tensor& dx, const Tensor& dgamma) {
  Mirror m(ctx, "rmsnorm_backward");
  m.run(cuda::rmsnorm_backward, cpu::rmsnorm_backward, m.in(dy), m.in(s), m.in(gamma), m.in(rstd), m.in(d_residual), m.out("dx", dx, rounded(1e-6)), m.out("dgamma", dgamma));
}

void swiglu_quantize(Ctx& ctx, const Tensor& gate_up, const Tensor& y, const QuantizedOut& images) {
  Mirror m(ctx, "swiglu_quantize");
  m.run(cuda::swiglu_quantize, cpu::swiglu_quantize, m.in(gate_up), m.out("y", y), m.out("", images));
}

void swiglu_backward(Ctx& ctx, const Tensor& dy, const Tensor& gate_up, const Tensor& d_gate_up, const QuantizedOut& gate_images, const QuantizedOut& up_images) {
  Mirror m(ctx, "swiglu_backward");
  m.run(cuda::swiglu_backward, cpu::swiglu_backward, m.in(dy), m.in(gate_up), m.out("d_gate_up", d_gate_up), m.out("gate's ", gate_images), m.out("up's ", up_images));
}

void qk_norm_rope(Ctx& ctx, const Tensor& qkv, const Tensor& positions, const Tensor& cos_sin, const HeadGeometry& g, const QkNorm& norm, const Tensor& out) {
  Mirror m(ctx, "qk_norm_rope");
  m.run(cuda::qk_norm_rope, cpu::qk_norm_rope, m.in(qkv), m.in(positions), m.in(cos_sin), g, mirrored(m, norm, false),
        m.out("out", out, given(norm.gamma_q) ? rounded(1e-6) : exact));
}

void qk_norm_rope_backward(Ctx& ctx, const Tensor& d_out, const Tensor& qkv, const Tensor& positions, const Tensor& cos_sin, const HeadGeometry& g, const QkNorm& norm,
                           const Tensor& d_qkv) {
  Mirror m(ctx, "qk_norm_rope_backward");
  m.run(cuda::qk_norm_rope_backward, cpu::qk_norm_rope_backward, m.in(d_out), m.in(qkv), m.in(positions), m.in(cos_sin), g, mirrored(m, norm, true),
        m.out("d_qkv", d_qkv, given(norm.gamma_q) ? rounded(1e-6) : exact));
}

// As a norm's: images are compared with the CPU's of the GPU's out.
void attention(Ctx& ctx, const Tensor& qkv, const Tensor& document_start, int64_t seq_len, const HeadGeometry& g, const Tensor& out, const Tensor& lse, const QuantizedOut& images) {
  Mirror m(ctx, "attention");
  const auto on_host = [&](Ctx& host, const Tensor& x, const Tensor& documents, const Tensor& o, const Tensor& l, const QuantizedOut& wanted) {
    cpu::attention(host, x, documents, seq_len, g, o, l, {});
    if (wanted.wanted()) cpu::quantize(host, m.in(out).host, wanted);
  };
  const auto on_device = [&](Ctx& device, const Tensor& x, const Tensor& documents, const Tensor& o, const Tensor& l, const QuantizedOut& wanted) {
    cuda::attention(device, x, documents, seq_len, g, o, l, wanted);
  };
  m.run(on_device, on_host, m.in(qkv), m.in(document_start), m.out("out", out, rounded(tensor_attention(qkv, g) ? 0x1p-9 : 2e-6)), m.out("lse", lse, rounded(2e-6)), m.out("", images));
}

// q, k and v by themselves: v's gradients are larger than q's. Those of q and k come from differences, whose rounding is that of products of the inputs.
void attention_backward(Ctx& ctx, const Tensor& d_out, const Tensor& qkv, const Tensor& out, const Tensor& lse, const Tensor& document_start, int64_t seq_len,
                        const HeadGeometry& g, const Tensor& d_qkv) {
  Mirror m(ctx, "attention_backward");
  const auto d = m.in(d_out), x = m.in(qkv), grad = m.in(d_qkv);
  const int64_t q = g.heads * g.head_dim, k = g.kv_heads * g.head_dim;
  const MatrixView inputs(x.host);
  const bool tensor = tensor_attention(qkv, g);
  const double relative = tensor ? 0x1p-8 : 5e-6, share = (tensor ? 0x1p-10 : 1.0) * largest_magnitude(d.host) * largest_magnitude(inputs.columns(q + k, k));
  const Mirrored<MatrixView> parts{grad.device, grad.host};
  m.check("d_qkv, q's columns", columns_of(parts, 0, q), rounded(relative, share * largest_magnitude(inputs.columns(q, k))));
  m.check("d_qkv, k's columns", columns_of(parts, q, k), rounded(relative, share * largest_magnitude(inputs.columns(0, q))));
  m.check("d_qkv, v's columns", columns_of(parts, q + k, k), rounded(relative));
  m.run(cuda::attention_backward, cpu::attention_backward, d, x, m.in(out), m.in(lse), m.in(document_start), seq_len, g, grad);
}

void embedding(Ctx& ctx, const Tensor& table, const Tensor& tokens, const Tensor& out, int64_t first_row) {
  Mirror m(ctx, "embedding");
  m.run(cuda::embedding, cpu::embedding, m.in(table), m.in(tokens), m.out("out", out), first_row);
}

void embedding_backward(Ctx& ctx, const Tensor& d_out, const Tensor& tokens, const Tensor& d_table, int64_t first_row) {
  Mirror m(ctx, "embedding_backward");
  m.run(cuda::embedding_backward, cpu::embedding_backward, m.in(d_out), m.in(tokens), m.out("d_table", d_table), first_row);
}

void cross_entropy(Ctx& ctx, const Tensor& logits, const Tensor& labels, int64_t vocab, float z_coefficient, const float* grad_scale, const Tensor& loss, const Tensor& z) {
  Mirror m(ctx, "cross_entropy");
  m.run(cuda::cross_entropy, cpu::cross_entropy, m.out("logits", logits, grad_scale ? rounded(4e-6) : exact), m.in(labels), vocab, z_coefficient, m.in(grad_scale),
        m.out("loss", loss, rounded(1e-6)), m.out("z", z, rounded(1e-6)));
}

// Maxima and labels' logits are exact, sums are in another order.
void softmax_parts(Ctx& ctx, const Tensor& logits, const Tensor& labels, int64_t first, int64_t columns, const Tensor& parts) {
  Mirror m(ctx, "softmax_parts");
  const auto both = m.in(parts);
  const Mirrored<MatrixView> view{both.device, both.host};
  m.check("maximum", columns_of(view, 0, 1), exact);
  m.check("sum", columns_of(view, 1, 1), rounded(4e-6));
  m.check("the label's logit", columns_of(view, 2, 1), exact);
  m.run(cuda::softmax_parts, cpu::softmax_parts, m.in(logits), m.in(labels), first, columns, both);
}

void cross_entropy_of_parts(Ctx& ctx, const Tensor& logits, const Tensor& labels, int64_t first, int64_t columns, const Tensor& parts, float z_coefficient,
                            const float* grad_scale, const Tensor& loss, const Tensor& z) {
  Mirror m(ctx, "cross_entropy_of_parts");
  m.run(cuda::cross_entropy_of_parts, cpu::cross_entropy_of_parts, m.out("logits", logits, grad_scale ? rounded(4e-6) : exact), m.in(labels), first, columns, m.in(parts), z_coefficient,
        m.in(grad_scale), m.out("loss", loss, rounded(1e-6)), m.out("z", z, rounded(1e-6)));
}

// Doubles, added in another order.
void sum(Ctx& ctx, const Tensor& x, double* total) {
  Mirror m(ctx, "sum");
  const auto values = m.in(x);
  m.run(cuda::sum, cpu::sum, values, m.out("total", total, {.relative = 1e-12, .least = largest_magnitude(values.host)}));
}

// Doubles as well.
void sum_squares(Ctx& ctx, std::span<const Tensor> x, double* totals) {
  in_parts(x, [](const Tensor& t) { return t.bytes(); }, [&](std::span<const Tensor> part, size_t first) {
    Mirror m(ctx, "sum_squares");
    std::vector<Tensor> host;
    std::vector<double*> sums;   // of the host, each by itself
    for (size_t i = 0; i < part.size(); ++i) {
      host.push_back(m.in(part[i]).host);
      sums.push_back(m.out(fmt::format("total of tensor {}", first + i), totals + first + i, {.relative = 1e-12}).host);
    }
    m.run([&](Ctx& device) { cuda::sum_squares(device, part, totals + first); },
          [&](Ctx& cpu) {
            std::vector<double> together;
            for (const double* sum : sums) together.push_back(*sum);
            cpu::sum_squares(cpu, host, together.data());
            for (size_t i = 0; i < sums.size(); ++i) *sums[i] = together[i];
          });
  });
}

// FP32 sums in another order, whose roundings are those of partial sums: about the square root of the number of rows in size, also where they cancel.
void column_sums(Ctx& ctx, const MatrixView& dy, const Tensor& d_bias) {
  Mirror m(ctx, "column_sums");
  const auto values = m.in(dy);
  const double partial_sums = std::sqrt(static_cast<double>(dy.rows)) * largest_magnitude(values.host);
  m.run(cuda::column_sums, cpu::column_sums, values, m.out("d_bias", d_bias, rounded(4e-6, partial_sums)));
}

void zero(Ctx& ctx, const Tensor& x) {
  Mirror m(ctx, "zero");
  m.run(cuda::zero, cpu::zero, m.out("x", x));
}

void copy(Ctx& ctx, const Tensor& from, const Tensor& to) {
  Mirror m(ctx, "copy");
  m.run(cuda::copy, cpu::copy, m.in(from), m.out("to", to));
}

void add(Ctx& ctx, const Tensor& from, const Tensor& to) {
  Mirror m(ctx, "add");
  m.run(cuda::add, cpu::add, m.in(from), m.out("to", to));
}

void transpose(Ctx& ctx, const MatrixView& from, const MatrixView& to) {
  Mirror m(ctx, "transpose");
  m.run(cuda::transpose, cpu::transpose, m.in(from), m.out("to", to));
}

void join_columns(Ctx& ctx, const MatrixView& parts, const MatrixView& whole) {
  Mirror m(ctx, "join_columns");
  m.run(cuda::join_columns, cpu::join_columns, m.in(parts), m.out("whole", whole));
}

void narrow_scales(Ctx& ctx, const Tensor& scale_inv, const Tensor& codes) {
  Mirror m(ctx, "narrow_scales");
  m.run(cuda::narrow_scales, cpu::narrow_scales, m.in(scale_inv), m.out("codes", codes));
}

void widen_scales(Ctx& ctx, const Tensor& codes, const Tensor& scale_inv) {
  Mirror m(ctx, "widen_scales");
  m.run(cuda::widen_scales, cpu::widen_scales, m.in(codes), m.out("scale_inv", scale_inv));
}

void adamw(Ctx& ctx, std::span<const AdamwUpdate> updates, const AdamwStep& step, const StepControl* control) {
  in_parts(updates, state_bytes, [&](std::span<const AdamwUpdate> part, size_t first) {
    Mirror m(ctx, "adamw");
    std::vector<AdamwUpdate> host;
    for (size_t i = 0; i < part.size(); ++i) host.push_back(mirrored(m, part[i], fmt::format(" of tensor {}", first + i)).host);
    const Mirrored<std::span<const AdamwUpdate>> both{part, host};
    m.run(cuda::adamw, cpu::adamw, both, step, m.in(control));
  });
}

void adamw_quantize(Ctx& ctx, const AdamwUpdate& update, const AdamwStep& step, const StepControl* control, const QuantizedOut& images) {
  Mirror m(ctx, "adamw_quantize");
  m.run(cuda::adamw_quantize, cpu::adamw_quantize, mirrored(m, update, ""), step, m.in(control), m.out("", images));
}

void decide_step(Ctx& ctx, const StepInputs& inputs, StepOutcome* outcome) {
  Mirror m(ctx, "decide_step");
  StepInputs host = inputs;
  host.loss_sum = m.in(inputs.loss_sum).host;
  host.squares = m.in(inputs.squares, inputs.parameters).host;
  host.nonfinite = m.in(inputs.nonfinite, inputs.sites).host;
  m.run(cuda::decide_step, cpu::decide_step, Mirrored<StepInputs>{inputs, host}, m.out("outcome", outcome));
}

void cast_weights(Ctx& ctx, const Tensor& master, const Tensor& working) {
  Mirror m(ctx, "cast_weights");
  m.run(cuda::cast_weights, cpu::cast_weights, m.in(master), m.out("working", working));
}

}  // namespace octet::shadow
#endif
