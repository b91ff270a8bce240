// Attention: from the operators' arguments to the kernels of attention/kernels.h.
#include "ops/attention.h"

#include <algorithm>

#include "cuda/attention/kernels.h"
#include "cuda/cuda_ops.h"
#include "cuda/device.h"
#include "cuda/quantize.h"

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

// Whether the mma family runs it here. Forward and backward may go different ways: they share out and lse alone.
bool serves(Ctx& ctx, const AttentionShape& s, size_t shared_bytes) { return mma_attention_serves(s) && shared_bytes <= ctx.cuda().info().shared_bytes; }

bool wgmma_chosen(Ctx& ctx, const AttentionShape& s) { return ctx.attention == AttentionKernels::wgmma && ctx.cuda().info().wgmma && wgmma_attention_serves(s); }

bool aligned(const Tensor& t) { return reinterpret_cast<uintptr_t>(t.data) % 16 == 0; }

void check_dtypes(const char* op, const Tensor& qkv, const Tensor& other) {
  OCTET_CHECK(qkv.dtype == other.dtype, "{}: qkv is {}, out and gradients must be too, not {}", op, name(qkv.dtype), name(other.dtype));
}

// What the mma family can do for images of out: all of it (images), take the amax that scales wait for, or nothing.
enum class Share { nothing, amax, images };
Share share_of_images(const AttentionShape& s, const SourceParams& out, const ImagePair& pair) {
  if (!attention_quantizes(s.head_dim) || !tile_serves(out, {&pair, 1})) return Share::nothing;
  switch (scales_await(pair)) {
    case Awaits::nothing: return s.seq_len % 16 == 0 ? Share::images : Share::nothing;
    case Awaits::tile: return s.seq_len % 128 == 0 && s.head_dim % 128 == 0 ? Share::images : Share::nothing;
    case Awaits::tensor: return Share::amax;
    case Awaits::lines: return Share::nothing;
  }
  return Share::nothing;
}

}  // namespace

void attention(Ctx& ctx, const Tensor& qkv, const Tensor& document_start, int64_t seq_len, const HeadGeometry& g, const Tensor& out, const Tensor& lse, const QuantizedOut& images) {
  Arena::Scope scope(ctx.scratch());
  SourceParams values = plain_source(out);
  const SourceScratch scratch = images.wanted() ? source_scratch(ctx, values, {&images, 1}) : SourceScratch{};
  unsigned* amax = images.wanted() ? ctx.scratch().alloc_array<unsigned>(1) : nullptr;
  if (ctx.planning() || qkv.elements() == 0) return;
  check_dtypes("attention", qkv, out);
  AttentionForward p{shape_of(qkv, document_start, seq_len, g), qkv.data, out.data, lse.as<float>()};
  CUstream_st* stream = ctx.cuda().stream();
  const bool wgmma = wgmma_chosen(ctx, p.shape) && aligned(qkv) && aligned(out);
  const bool mma = !wgmma && serves(ctx, p.shape, attention_shared_bytes(p.shape.head_dim)) && aligned(qkv) && aligned(out);
  const ImagePair pair = image_pair(images);
  const Share share = mma && images.wanted() ? share_of_images(p.shape, values, pair) : Share::nothing;
  if (share == Share::images) p.images = launch_tile_scales(stream, values, pair, scratch.maxima);
  if (share == Share::amax) {
    const MemorySource memory = ctx.cuda().memory();
    memory.fill(memory.user, amax, 0, sizeof(unsigned));
    p.amax = values.amax = amax;
  }
  (wgmma ? launch_attention_wgmma : mma ? launch_attention : launch_attention_general)(stream, p);
  if (images.wanted() && share != Share::images) quantize_source(ctx, values, {&images, 1}, scratch);
}

void attention_backward(Ctx& ctx, const Tensor& d_out, const Tensor& qkv, const Tensor& out, const Tensor& lse, const Tensor& document_start, int64_t seq_len,
                        const HeadGeometry& g, const Tensor& d_qkv) {
  Arena::Scope scope(ctx.scratch());
  const int64_t samples = qkv.rows() / seq_len, padded = (seq_len + 63) / 64 * 64;
  float2* terms = ctx.scratch().alloc_array<float2>(samples * g.heads * padded);
  if (ctx.planning() || qkv.elements() == 0) return;
  check_dtypes("attention_backward", qkv, d_out);
  check_dtypes("attention_backward", qkv, d_qkv);
  const AttentionBackward p{shape_of(qkv, document_start, seq_len, g), d_out.data, qkv.data, out.data, lse.as<float>(), d_qkv.data, terms, padded};
  CUstream_st* stream = ctx.cuda().stream();
  const size_t shared_bytes = std::max(attention_backward_keys_shared_bytes(p.shape.head_dim), attention_backward_queries_shared_bytes(p.shape.head_dim));
  const bool all_aligned = aligned(qkv) && aligned(out) && aligned(d_out) && aligned(d_qkv);
  if (all_aligned && wgmma_chosen(ctx, p.shape)) {
    const MemorySource memory = ctx.cuda().memory();
    if (padded != seq_len) memory.fill(memory.user, terms, 0x7F, static_cast<size_t>(samples * g.heads * padded) * sizeof(float2));
    launch_attention_terms(stream, p);
    launch_attention_backward_keys_wgmma(stream, p);
    launch_attention_backward_queries_wgmma(stream, p);
  } else if (all_aligned && serves(ctx, p.shape, shared_bytes)) {
    launch_attention_terms(stream, p);
    launch_attention_backward_keys(stream, p);
    launch_attention_backward_queries(stream, p);
  } else {
    launch_attention_backward_general(stream, p);
  }
}

}  // namespace octet::cuda
