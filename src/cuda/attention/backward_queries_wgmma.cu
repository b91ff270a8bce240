// Backward of the wgmma family, dQ (kernels.h):
//   S = Q K^T,  P = exp2(scale S log2(e) - lse),  dP = dO V^T,  dS = P (dP - delta),  dQ += dS K
//
// A CTA has 128 queries of one head, 64 of each of two warpgroups, which hold Q and dO in registers; a third warpgroup's first thread lets the copy engine bring tiles of 64 keys and values,
// as far down as the queries' documents begin. dQ of a tile is multiplied beside P and dS of the next.
//
// Shared memory: d 64: 81 KiB, d 128: 161 KiB.
#include "cuda/attention/wgmma.cuh"
#include "cuda/launch.h"

namespace octet::cuda {
namespace {

constexpr int query_tile = 128, key_tile = 64, stages = 3;

template <int D>
struct Shared {
  alignas(1024) bf16 queries[query_tile * D], d_out[query_tile * D];
  bf16 keys[stages][key_tile * D], values[stages][key_tile * D];
  ptx::Barrier queries_full;
  Ring<stages> key_ring;
};

template <int D>
__device__ __forceinline__ void load_tiles(Shared<D>& shared, const TensorMap& qkv, const TensorMap& d_out, const HeadPlace& at, int q0, int first_tile, int end_tile) {
  ptx::arrive_expecting(shared.queries_full, sizeof shared.queries + sizeof shared.d_out);
  load_tile<D, query_tile, key_tile>(shared.queries, qkv, shared.queries_full, static_cast<int>(at.query_column), q0, at.sample);
  load_tile<D, query_tile, key_tile>(shared.d_out, d_out, shared.queries_full, static_cast<int>(at.query_column), q0, at.sample);
  for (int tile = first_tile, t = 0; tile < end_tile; ++tile, ++t) {
    const int stage = t % stages;
    shared.key_ring.wait_free(t);
    ptx::arrive_expecting(shared.key_ring.full[stage], sizeof shared.keys[0] + sizeof shared.values[0]);
    load_tile<D, key_tile, key_tile>(shared.keys[stage], qkv, shared.key_ring.full[stage], static_cast<int>(at.key_column), tile * key_tile, at.sample);
    load_tile<D, key_tile, key_tile>(shared.values[stage], qkv, shared.key_ring.full[stage], static_cast<int>(at.value_column), tile * key_tile, at.sample);
  }
}

// 64 queries of warpgroup w: columns q of d_qkv.
template <int D>
__device__ __forceinline__ void differentiate(Shared<D>& shared, const AttentionBackward& p, Scale scale, const HeadPlace& at, int q0, int first_tile, int end_tile, int w) {
  const AttentionShape& s = p.shape;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = warp_index() % 4, row0 = w * 64 + warp * 16;
  const QueryWarp own(q0 + row0, 16, s.seq_len, documents_of(s, at.sample));
  const RowTerms<1> terms(p.terms_of(at.sample, at.head), own, lane);
  Accumulator<1, D / 8> dq;
  Accumulator<1, key_tile / 8> scores, gradients;
  Fragments<1, D / 16> queries, d_out;
  Fragments<1, key_tile / 16> score_gradients;
  ptx::wait(shared.queries_full, 0);
  load_operand<D, query_tile>(queries, shared.queries, row0, lane);
  load_operand<D, query_tile>(d_out, shared.d_out, row0, lane);
  const auto probabilities_of = [&](int t) {
    const int k0 = (first_tile + t) * key_tile;
    if (own.needs_mask(k0, key_tile)) own.mask(scores, k0, lane);
    to_probabilities(scores, terms, scale.log2);
  };
  shared.key_ring.wait_full(0);
  ptx::wgmma_fence();
  multiply_rows<D>(scores, queries, shared.keys[0]);
  multiply_rows<D>(gradients, d_out, shared.values[0]);
  ptx::wgmma_wait<0>();
  probabilities_of(0);
  to_score_gradients(gradients, scores, terms);
  to_operand(score_gradients, gradients);
  int t = 1;
#pragma unroll 1
  for (; first_tile + t < end_tile; ++t) {
    shared.key_ring.wait_full(t);
    ptx::wgmma_fence();
    multiply_rows<D>(scores, queries, shared.keys[t % stages]);
    multiply_rows<D>(gradients, d_out, shared.values[t % stages]);
    multiply_weighted<D>(dq, score_gradients, shared.keys[(t - 1) % stages], t > 1);
    ptx::wgmma_wait<2>();
    probabilities_of(t);
    ptx::wgmma_wait<1>();
    to_score_gradients(gradients, scores, terms);
    ptx::wgmma_wait<0>();
    shared.key_ring.release(t - 1, lane);
    to_operand(score_gradients, gradients);
  }
  ptx::wgmma_fence();
  multiply_weighted<D>(dq, score_gradients, shared.keys[(t - 1) % stages], t > 1);
  ptx::wgmma_wait<0>();
  float factor[1][2];
  fill(factor, scale.plain);
  // Where the rows lie is worked out again: the loop needs its registers.
  const HeadPlace to = head_place(s, static_cast<int>(blockIdx.x) / s.heads, static_cast<int>(blockIdx.x) % s.heads, 0);
  const int64_t ld = at.ld;
  store_rows<D, query_tile>(static_cast<bf16*>(p.d_qkv) + (to.row0 + own.first) * ld + to.query_column, ld, own.last - own.first + 1, shared.queries, row0, dq, factor, lane);
}

template <int D>
__global__ void __launch_bounds__(wgmma_threads, 1) backward_queries(AttentionBackward p, Scale scale, const __grid_constant__ TensorMap qkv, const __grid_constant__ TensorMap d_out) {
  static_assert(D == 64 || D == 128, "rows are one or two boxes of 64 columns");
  static_assert(sizeof(Shared<D>) <= 232448, "what a CTA of compute capability 9.0 may ask for");
#ifdef OCTET_WGMMA
  Shared<D>& shared = *ptx::dynamic_shared<Shared<D>>();
  const AttentionShape& s = p.shape;
  const int q0 = static_cast<int>(gridDim.y - 1 - blockIdx.y) * query_tile, head = static_cast<int>(blockIdx.x) % s.heads;
  const HeadPlace at = head_place(s, static_cast<int>(blockIdx.x) / s.heads, head, head / s.group());
  const int32_t* document = documents_of(s, at.sample);
  const int first_tile = document ? document[q0] / key_tile : 0, end_tile = (min(q0 + query_tile, s.seq_len) + key_tile - 1) / key_tile;
  if (threadIdx.x == 0) {
    ptx::prefetch_map(qkv);
    ptx::prefetch_map(d_out);
    ptx::barrier_init(shared.queries_full, 1);
    shared.key_ring.init();
    ptx::barrier_init_fence();
  }
  __syncthreads();
  split_roles([&] { load_tiles<D>(shared, qkv, d_out, at, q0, first_tile, end_tile); }, [&](int w) { differentiate<D>(shared, p, scale, at, q0, first_tile, end_tile, w); });
#else
  __trap();   // code of another machine
#endif
}

template <int D>
void launch_queries(cudaStream_t stream, const AttentionBackward& p) {
  const AttentionShape& s = p.shape;
  const dim3 grid(static_cast<unsigned>(s.samples * s.heads), blocks_for(s.seq_len, query_tile));
  launch("dQ of attention (wgmma)", stream, backward_queries<D>, grid, wgmma_threads, sizeof(Shared<D>), p, scale_of(s), map_of_heads(s, p.qkv, s.heads + 2 * s.kv_heads, key_tile),
         map_of_heads(s, p.d_out, s.heads, key_tile));
}

}  // namespace

void launch_attention_backward_queries_wgmma(cudaStream_t stream, const AttentionBackward& p) {
  if (p.shape.head_dim == 64) launch_queries<64>(stream, p);
  else launch_queries<128>(stream, p);
}

}  // namespace octet::cuda
