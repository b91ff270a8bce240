// Backward of the mma family, dK and dV (kernels.h; FlashAttention-2, arXiv 2307.08691, algorithm 2, without its additions to dQ).
//
// A CTA has 128 keys of one kv head and walks over the query tiles that see them, for each query head of the group in turn; two tiles in flight by
// cp.async, one barrier a tile. Everything is computed transposed, keys by queries, so that P and dS go from the accumulators of the first
// products into the operands of the second ones without shared memory:
//   S^T = K Q^T,  P^T = exp2(scale S^T log2(e) - lse),  dP^T = V dO^T,  dS^T = P^T (dP^T - delta),  dV += P^T dO,  dK += dS^T Q
// CTAs of the first keys, which most queries see, are launched first. Above head_dim 128 dK and dV do not fit in registers together: two launches, 5
// products instead of 4.
//
// Registers a thread and shared memory a CTA (nvcc 13.0, sm_90a; nothing is spilled): d 64: 247, 55 KiB, two CTAs of 4 warps an SM; d 128: 250, 137 KiB, one
// CTA of 8 warps; d 192, 256: 221, 241 registers, 151, 199 KiB. At d 128 dK and dV of 16 keys take half of a thread's registers, so M is 1 and the tile of a
// warp is 256 products and 144 loads of matrices: shared memory is the limit, 4860 cycles a CTA and tile beside about 2940 of the tensor cores.
#include "cuda/attention/softmax.cuh"
#include "cuda/attention/tile.cuh"
#include "cuda/launch.h"

namespace octet::cuda {
namespace {

constexpr int key_tile = 128;

template <int D>
struct Plan {
  static constexpr int m = D <= 64 ? 2 : 1, warps = key_tile / (16 * m), threads = 32 * warps, query_tile = D > 64 && D <= 128 ? 64 : 32;
  static constexpr size_t stage = 2 * tile_bytes<D>(query_tile) + query_tile * sizeof(float2), shared = 2 * tile_bytes<D>(key_tile) + 2 * stage;
};

template <int D, bool Keys, bool Values>
__global__ void __launch_bounds__(Plan<D>::threads, D <= 64 ? 2 : 1) backward_keys(AttentionBackward p, Scale scale) {
  using P = Plan<D>;
  constexpr int M = P::m, N = P::query_tile / 8;
  constexpr int tile_elements = P::query_tile * tile_stride<D>;
  bf16* keys = ptx::dynamic_shared<bf16>();
  bf16* values = keys + key_tile * tile_stride<D>;
  bf16* tiles = values + key_tile * tile_stride<D>;               // queries, d_out, queries, d_out
  float2* all_terms = reinterpret_cast<float2*>(tiles + 4 * tile_elements);
  const AttentionShape& s = p.shape;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp_row = warp_index() * 16 * M;
  const int k0 = static_cast<int>(blockIdx.y) * key_tile, kv_head = static_cast<int>(blockIdx.x) % s.kv_heads;
  const HeadPlace at = head_place(s, static_cast<int>(blockIdx.x) / s.kv_heads, 0, kv_head);
  const int32_t* document = documents_of(s, at.sample);
  const int d = s.head_dim, out_ld = s.heads * d, key_end = min(k0 + key_tile, s.seq_len), query_end = document ? first_query_beyond(document, key_end - 1, s.seq_len) : s.seq_len;
  const KeyWarp warp(k0 + warp_row, 16 * M, key_tile, s.seq_len, document);

  Walk next{kv_head * s.group(), k0 / P::query_tile, k0 / P::query_tile, (query_end + P::query_tile - 1) / P::query_tile, (kv_head + 1) * s.group()};
  const auto copy_queries = [&](int stage) {
    const int q0 = next.tile * P::query_tile, valid = s.seq_len - q0, t = static_cast<int>(threadIdx.x);
    bf16* to = tiles + stage * 2 * tile_elements;
    copy_tile<P::query_tile, D, P::threads>(to, static_cast<const bf16*>(p.qkv) + (at.row0 + q0) * at.ld + next.head * d, at.ld, valid, d);
    copy_tile<P::query_tile, D, P::threads>(to + tile_elements, static_cast<const bf16*>(p.d_out) + (at.row0 + q0) * out_ld + next.head * d, out_ld, valid, d);
    const float2* terms = p.terms_of(at.sample, next.head) + q0;
    if (t < P::query_tile) ptx::copy_async_8(all_terms + stage * P::query_tile + t, terms + t, t < valid);
    ptx::copy_async_commit();
  };
  const int64_t key_at = (at.row0 + k0) * at.ld + at.key_column;
  copy_tile<key_tile, D, P::threads, 2>(keys, static_cast<const bf16*>(p.qkv) + key_at, at.ld, s.seq_len - k0, d, s.kv_heads * d);
  copy_queries(0);

  bf16 *own_keys = keys + warp_row * tile_stride<D>, *own_values = values + warp_row * tile_stride<D>;
  Accumulator<M, D / 8> dk, dv;
  for (int stage = 0; !next.done(); stage ^= 1) {
    const int q0 = next.tile * P::query_tile;
    ptx::copy_async_wait<0>();
    __syncthreads();   // this tile is there for all, and nobody reads the one before
    next.advance();
    if (!next.done()) copy_queries(stage ^ 1);
    if (!warp.seen(q0, P::query_tile)) continue;
    const bf16 *queries = tiles + stage * 2 * tile_elements, *d_out = queries + tile_elements;
    const float2* terms = all_terms + stage * P::query_tile;
    Accumulator<M, N> probabilities;
    add_scores<D>(probabilities, own_keys, queries, lane);
    if (warp.needs_mask(q0, P::query_tile)) warp.mask(probabilities, q0, lane);
    to_probabilities(probabilities, terms, scale.log2, lane);
    Fragments<M, N / 2> operand;
    if constexpr (Keys) {
      Accumulator<M, N> gradients;
      add_scores<D>(gradients, own_values, d_out, lane);
      to_score_gradients(gradients, probabilities, terms, lane);
      to_operand(operand, gradients);
      add_weighted<D>(dk, operand, queries, lane);
    }
    if constexpr (Values) {
      to_operand(operand, probabilities);
      add_weighted<D>(dv, operand, d_out, lane);
    }
  }
  const int valid = warp.last - warp.first + 1;
  bf16* to = static_cast<bf16*>(p.d_qkv) + (at.row0 + warp.first) * at.ld;
  float factor[M][2];
  if constexpr (Keys) {
    fill(factor, scale.plain);
    store_rows<D>(to + at.key_column, at.ld, valid, d, own_keys, dk, factor, lane);
  }
  if constexpr (Values) {
    fill(factor, 1.0f);
    store_rows<D>(to + at.value_column, at.ld, valid, d, own_values, dv, factor, lane);
  }
}

template <int D, bool Keys, bool Values>
void launch_pass(cudaStream_t stream, const AttentionBackward& p) {
  using P = Plan<D>;
  const auto kernel = backward_keys<D, Keys, Values>;
  const dim3 grid(static_cast<unsigned>(p.shape.samples * p.shape.kv_heads), blocks_for(p.shape.seq_len, key_tile));
  launch("dK and dV of attention", stream, kernel, grid, P::threads, P::shared, p, scale_of(p.shape));
}

}  // namespace

size_t attention_backward_keys_shared_bytes(int head_dim) {
  return with_padded_head_dim(head_dim, [](auto padded) { return Plan<decltype(padded)::d>::shared; });
}

void launch_attention_backward_keys(cudaStream_t stream, const AttentionBackward& p) {
  with_padded_head_dim(p.shape.head_dim, [&](auto padded) {
    constexpr int d = decltype(padded)::d;
    if constexpr (d <= 128) {
      launch_pass<d, true, true>(stream, p);
    } else {
      launch_pass<d, true, false>(stream, p);
      launch_pass<d, false, true>(stream, p);
    }
  });
}

}  // namespace octet::cuda
