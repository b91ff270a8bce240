// Backward of the mma family: the terms of query rows, then dQ (kernels.h).
//
// Terms: a lane 16 bytes of d_out and out, so that a warp reads 512 bytes of each at a time.
// A CTA has 128 queries of one head and walks over the key tiles they see as the forward does:
//   S = Q K^T,  P = exp2(scale S log2(e) - lse),  dP = dO V^T,  dS = P (dP - delta),  dQ += dS K
// Registers a thread and shared memory a CTA (nvcc 13.0, sm_90a; nothing is spilled): d 64: 214, 54 KiB; d 128: 255, 102 KiB; two CTAs of 4 warps an SM.
// d 192, 256: 216, 242 registers, 150, 198 KiB, one CTA of 8 warps. The tile of a warp at d 128 is 192 products and 80 loads of matrices.
#include "cuda/attention/softmax.cuh"
#include "cuda/attention/tile.cuh"
#include "cuda/launch.h"

namespace octet::cuda {
namespace {

constexpr int query_tile = 128;

__device__ __forceinline__ float add_products(uint32_t a, uint32_t b, float sum) {
  sum = fmaf(__uint_as_float(a << 16), __uint_as_float(b << 16), sum);
  return fmaf(__uint_as_float(a & 0xFFFF0000u), __uint_as_float(b & 0xFFFF0000u), sum);
}

constexpr int terms_threads = 256;

// `Lanes` lanes have one head of one row.
template <int Lanes>
__global__ void __launch_bounds__(terms_threads) query_terms(AttentionBackward p) {
  const AttentionShape& s = p.shape;
  const int64_t n = static_cast<int64_t>(blockIdx.x) * (terms_threads / Lanes) + threadIdx.x / Lanes, row = n / s.heads;
  const int c = static_cast<int>(threadIdx.x) % Lanes * 8;
  const bool inside = row < s.samples * s.seq_len;
  float delta = 0.0f;
  if (inside && c < s.head_dim) {
    const uint4 a = ptx::load_16(static_cast<const bf16*>(p.d_out) + n * s.head_dim + c), b = ptx::load_16(static_cast<const bf16*>(p.out) + n * s.head_dim + c);
    delta = add_products(a.w, b.w, add_products(a.z, b.z, add_products(a.y, b.y, add_products(a.x, b.x, 0.0f))));
  }
#pragma unroll
  for (int o = Lanes / 2; o; o >>= 1) delta += __shfl_xor_sync(all_lanes, delta, o);
  if (!inside || c != 0) return;
  const int64_t sample = row / s.seq_len, in_sample = row % s.seq_len;
  const int head = static_cast<int>(n % s.heads);
  p.terms_of(sample, head)[in_sample] = make_float2(p.lse[s.lse_at(sample, head) + in_sample] * log2_e, delta);
}

template <int D>
struct Plan {
  static constexpr int m = D <= 128 ? 2 : 1, warps = query_tile / (16 * m), threads = 32 * warps, key_tile = D <= 32 ? 64 : 32;
  static constexpr size_t shared = tile_bytes<D>(2 * query_tile + 4 * key_tile);
};

template <int D>
__global__ void __launch_bounds__(Plan<D>::threads, D <= 128 ? 2 : 1) backward_queries(AttentionBackward p, Scale scale) {
  using P = Plan<D>;
  constexpr int M = P::m, N = P::key_tile / 8;
  constexpr int tile_elements = P::key_tile * tile_stride<D>;
  bf16* queries = ptx::dynamic_shared<bf16>();
  bf16* d_out = queries + query_tile * tile_stride<D>;
  bf16* tiles = d_out + query_tile * tile_stride<D>;   // keys, values, keys, values
  const AttentionShape& s = p.shape;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp_row = warp_index() * 16 * M, d = s.head_dim;
  const int q0 = static_cast<int>(gridDim.y - 1 - blockIdx.y) * query_tile, head = static_cast<int>(blockIdx.x) % s.heads;
  const HeadPlace at = head_place(s, static_cast<int>(blockIdx.x) / s.heads, head, head / s.group());
  const int32_t* document = documents_of(s, at.sample);
  const bf16* qkv = static_cast<const bf16*>(p.qkv) + at.row0 * at.ld;
  const QueryWarp warp(q0 + warp_row, 16 * M, s.seq_len, document);

  const auto copy_keys = [&](int tile) {
    const bf16* rows = qkv + static_cast<int64_t>(tile) * P::key_tile * at.ld;
    copy_tile<P::key_tile, D, P::threads, 2>(tiles + tile % 2 * 2 * tile_elements, rows + at.key_column, at.ld, s.seq_len - tile * P::key_tile, d, s.kv_heads * d);
    ptx::copy_async_commit();
  };
  const int first_tile = document ? document[q0] / P::key_tile : 0, last_tile = (min(q0 + query_tile, s.seq_len) - 1) / P::key_tile, out_ld = s.heads * d;
  copy_tile<query_tile, D, P::threads>(queries, qkv + static_cast<int64_t>(q0) * at.ld + at.query_column, at.ld, s.seq_len - q0, d);
  copy_tile<query_tile, D, P::threads>(d_out, static_cast<const bf16*>(p.d_out) + (at.row0 + q0) * out_ld + at.query_column, out_ld, s.seq_len - q0, d);
  copy_keys(first_tile);

  const RowTerms<M> terms(p.terms_of(at.sample, head), warp, lane);
  bf16 *own = queries + warp_row * tile_stride<D>, *own_d_out = d_out + warp_row * tile_stride<D>;
  Accumulator<M, D / 8> dq;
  for (int tile = first_tile; tile <= last_tile; ++tile) {
    ptx::copy_async_wait<0>();
    __syncthreads();   // this tile is there for all, and nobody reads the one before
    if (tile < last_tile) copy_keys(tile + 1);
    const int k0 = tile * P::key_tile;
    if (!warp.sees(k0, P::key_tile)) continue;
    const bf16 *keys = tiles + tile % 2 * 2 * tile_elements, *values = keys + tile_elements;
    Accumulator<M, N> scores, gradients;
    add_scores<D>(scores, own, keys, lane);
    if (warp.needs_mask(k0, P::key_tile)) warp.mask(scores, k0, lane);
    add_scores<D>(gradients, own_d_out, values, lane);
    to_probabilities(scores, terms, scale.log2);
    to_score_gradients(gradients, scores, terms);
    Fragments<M, N / 2> operand;
    to_operand(operand, gradients);
    add_weighted<D>(dq, operand, keys, lane);
  }
  float factor[M][2];
  fill(factor, scale.plain);
  store_rows<D>(static_cast<bf16*>(p.d_qkv) + (at.row0 + warp.first) * at.ld + at.query_column, at.ld, warp.last - warp.first + 1, d, own, dq, factor, lane);
}

template <int Lanes>
void launch_terms(cudaStream_t stream, const AttentionBackward& p) {
  launch("terms of attention's backward", stream, query_terms<Lanes>, blocks_for(p.shape.samples * p.shape.seq_len * p.shape.heads, terms_threads / Lanes), terms_threads, 0, p);
}

}  // namespace

void launch_attention_terms(cudaStream_t stream, const AttentionBackward& p) {
  if (p.shape.head_dim <= 64) launch_terms<8>(stream, p);
  else if (p.shape.head_dim <= 128) launch_terms<16>(stream, p);
  else launch_terms<32>(stream, p);
}

size_t attention_backward_queries_shared_bytes(int head_dim) {
  return with_padded_head_dim(head_dim, [](auto padded) { return Plan<decltype(padded)::d>::shared; });
}

void launch_attention_backward_queries(cudaStream_t stream, const AttentionBackward& p) {
  with_padded_head_dim(p.shape.head_dim, [&](auto padded) {
    constexpr int d = decltype(padded)::d;
    using P = Plan<d>;
    const dim3 grid(static_cast<unsigned>(p.shape.samples * p.shape.heads), blocks_for(p.shape.seq_len, query_tile));
    launch("dQ of attention", stream, backward_queries<d>, grid, P::threads, P::shared, p, scale_of(p.shape));
  });
}

}  // namespace octet::cuda
