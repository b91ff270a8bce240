// Attention kernels. Plain structs and pointers to device memory; cuda/attention.cpp fills them from the operator's arguments, ops/attention.h has the
// formulas. Every launch is asynchronous on `stream`, needs no other memory than it is given, uses no atomics (but for amaxes
// and counts of out's images, whose order does not matter), and adds in a fixed order.
//
// Three families:
//   mma       FlashAttention-2 (Dao, arXiv 2307.08691) on mma.sync: bf16, head_dim a multiple of 16 up to 256 (zero-padded to 32, 64, 96, 128, 192 or
//             256), pointers 16-byte aligned. FP32 scores, softmax and sums; P and dS are rounded to bf16 as operands of the second products
//   wgmma     FlashAttention-3 (Shah et al., arXiv 2407.08608) on Hopper's warpgroup products and its copy engine (sm_90a): bf16, head_dim 64 and 128. Rounded where the mma family rounds
//   general   any head_dim, bf16 and f32: a warp a row, FP32 throughout. Correct, not fast
//
// Backward of the mma and the wgmma family is two kernels: one holds dK and dV of a key tile and walks over its queries, the other holds dQ of a query tile and
// walks over its keys. Both recompute S and dP: 4 + 3 = 7 products of 2 S^2 d FLOP (halved by the causal mask) where one kernel that adds dQ to memory
// needs 5. What that buys: no ordering between CTAs (ordered additions cost FlashAttention-3 18 to 37 % of its speed: flash-attention pull request 1893), no
// atomics, no FP32 image of dQ that is zeroed, added to and converted, and the same bits whatever the schedule.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernels/quantize.h"

namespace octet::cuda {

struct AttentionShape {
  bool wide = false;                           // f32, else bf16
  int64_t samples = 0;
  int seq_len = 0, heads = 0, kv_heads = 0, head_dim = 0;
  const int32_t* document_start = nullptr;     // [samples * seq_len], within the sample, nondecreasing; or null

  OCTET_HD int group() const { return heads / kv_heads; }   // query heads of a kv head
  OCTET_HD int64_t lse_at(int64_t sample, int head) const { return (sample * heads + head) * seq_len; }   // its first row in lse
};

struct AttentionForward {
  AttentionShape shape;
  const void* qkv;        // [samples * seq_len, (heads + 2 kv_heads) head_dim]
  void* out;              // [samples * seq_len, heads * head_dim]
  float* lse;             // [samples, heads, seq_len]
  // What the mma family makes of out beside, each may be absent. Images await nothing, and a sample is then a multiple of 16 rows, or their tile, and then
  // heads and samples are multiples of 128 columns and rows.
  unsigned* amax = nullptr;   // raised to the bits of its amax
  TilePart images{};
  bool writes_images() const { return images.row.image.codes || images.column.image.codes; }
};

struct AttentionBackward {
  AttentionShape shape;
  const void *d_out, *qkv, *out;
  const float* lse;
  void* d_qkv;
  float2* terms;          // [samples, heads, terms_pitch] scratch: what P and dS need of a query row
  int64_t terms_pitch;    // seq_len rounded up to 64; the wgmma family wants 0x7F bytes from seq_len on: a large lse, with which P is 0

  OCTET_HD float2* terms_of(int64_t sample, int head) const { return terms + (sample * shape.heads + head) * terms_pitch; }
};

bool mma_attention_serves(const AttentionShape& shape);
bool wgmma_attention_serves(const AttentionShape& shape);
// Whether the mma family's forward can take amax or images along: at head_dim 97 to 128 its registers are full, and it would spill in the loop over keys.
bool attention_quantizes(int head_dim);
// Shared memory that a CTA of the mma family needs, bytes: 56 KiB and less up to head_dim 64. Compute capabilities 8.9 and 12.x have 99 KiB: more
// than the forward needs up to head_dim 96, less than it needs from 128 on and backward from 96 on.
size_t attention_shared_bytes(int head_dim);
size_t attention_backward_keys_shared_bytes(int head_dim);
size_t attention_backward_queries_shared_bytes(int head_dim);

void launch_attention(cudaStream_t stream, const AttentionForward& p);
void launch_attention_wgmma(cudaStream_t stream, const AttentionForward& p);   // without amax and images
void launch_attention_general(cudaStream_t stream, const AttentionForward& p);

// Of the mma family's backward, in this order. terms = (lse log2(e), delta), delta = sum over a head's columns of d_out * out.
void launch_attention_terms(cudaStream_t stream, const AttentionBackward& p);
void launch_attention_backward_keys(cudaStream_t stream, const AttentionBackward& p);      // columns k and v of d_qkv
void launch_attention_backward_queries(cudaStream_t stream, const AttentionBackward& p);   // columns q
void launch_attention_backward_keys_wgmma(cudaStream_t stream, const AttentionBackward& p);
void launch_attention_backward_queries_wgmma(cudaStream_t stream, const AttentionBackward& p);
// All of it; its terms are (lse, delta).
void launch_attention_backward_general(cudaStream_t stream, const AttentionBackward& p);

}  // namespace octet::cuda
