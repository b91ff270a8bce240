// Attention: from the operators' arguments to the kernels of attention/kernels.h.
#include "ops/attention.h"

#include "cuda/attention/kernels.h"
#include "cuda/cuda_ops.h"
#include "cuda/device.h"

namespace octet::cuda {
namespace {

AttentionShape shape_of(const Tensor& qkv, const Tensor& document_start, int64_t seq_len, const HeadGeometry& g) {
  AttentionShape s;
  s.wide = qkv.dtype == Dtype::f32;
  s.samples = qkv.rows() / seq_len;
  s.seq_len = static_cast<int>(seq_len);
  s.heads = static_cast<int>(g.heads);
  s.kv_heads = static_cast<int>(g.kv_heads);
  s.head_dim = static_cast<int>(g.head_dim);
  s.document_start = document_start ? document_start.as<int32_t>() : nullptr;
  return s;
}

bool aligned(const Tensor& t) { return reinterpret_cast<uintptr_t>(t.data) % 16 == 0; }

void check_dtypes(const char* op, const Tensor& qkv, const Tensor& other) {
  OCTET_CHECK(qkv.dtype == other.dtype, "{}: qkv is {}, out and gradients must be too, not {}", op, name(qkv.dtype), name(other.dtype));
}

}  // namespace

void attention(Ctx& ctx, const Tensor& qkv, const Tensor& document_start, int64_t seq_len, const HeadGeometry& g, const Tensor& out, const Tensor& lse) {
  if (ctx.planning() || qkv.elements() == 0) return;
  check_dtypes("attention", qkv, out);
  const AttentionForward p{shape_of(qkv, document_start, seq_len, g), qkv.data, out.data, lse.as<float>()};
  const bool tensor = tensor_attention_serves(p.shape) && aligned(qkv) && aligned(out);
  (tensor ? launch_attention : launch_attention_general)(ctx.cuda().stream(), p);
}

void attention_backward(Ctx& ctx, const Tensor& d_out, const Tensor& qkv, const Tensor& out, const Tensor& lse, const Tensor& document_start, int64_t seq_len,
                        const HeadGeometry& g, const Tensor& d_qkv) {
  Arena::Scope scope(ctx.scratch());
  float2* terms = ctx.scratch().alloc_array<float2>(qkv.rows() * g.heads);
  if (ctx.planning() || qkv.elements() == 0) return;
  check_dtypes("attention_backward", qkv, d_out);
  check_dtypes("attention_backward", qkv, d_qkv);
  const AttentionBackward p{shape_of(qkv, document_start, seq_len, g), d_out.data, qkv.data, out.data, lse.as<float>(), d_qkv.data, terms};
  CUstream_st* stream = ctx.cuda().stream();
  const bool tensor = tensor_attention_serves(p.shape) && aligned(qkv) && aligned(out) && aligned(d_out) && aligned(d_qkv);
  if (tensor) {
    launch_attention_terms(stream, p);
    launch_attention_backward_keys(stream, p);
    launch_attention_backward_queries(stream, p);
  } else {
    launch_attention_backward_general(stream, p);
  }
}

}  // namespace octet::cuda
