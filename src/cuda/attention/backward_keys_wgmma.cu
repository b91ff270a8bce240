// Backward of the wgmma family, dK and dV (kernels.h). As backward_keys.cu computes them, transposed, so that P and dS go from one product's registers into the next:
//   S^T = K Q^T,  P^T = exp2(scale S^T log2(e) - lse),  dP^T = V dO^T,  dS^T = P^T (dP^T - delta),  dV += P^T dO,  dK += dS^T Q
//
// A CTA has 128 keys of one kv head, 64 of each of two warpgroups; a third warpgroup's first thread lets the copy engine bring tiles of 64 queries with their d_out and terms, for each
// query head of the group in turn. dV of a tile is multiplied beside its dS; more beside each other does not fit in the registers.
//
// Shared memory: d 64: 82 KiB, d 128: 162 KiB.
#include "cuda/attention/wgmma.cuh"
#include "cuda/launch.h"

namespace octet::cuda {
namespace {

constexpr int key_tile = 128, query_tile = 64, stages = 3;

template <int D>
struct Shared {
  alignas(1024) bf16 keys[key_tile * D], values[key_tile * D];
  bf16 queries[stages][query_tile * D], d_out[stages][query_tile * D];
  float2 terms[stages][query_tile];
  ptx::Barrier keys_full;
  Ring<stages> query_ring;
};

template <int D>
__device__ __forceinline__ void load_tiles(Shared<D>& shared, const AttentionBackward& p, const TensorMap& qkv, const TensorMap& d_out, const HeadPlace& at, int k0, Walk walk) {
  ptx::arrive_expecting(shared.keys_full, sizeof shared.keys + sizeof shared.values);
  load_tile<D, key_tile, query_tile>(shared.keys, qkv, shared.keys_full, static_cast<int>(at.key_column), k0, at.sample);
  load_tile<D, key_tile, query_tile>(shared.values, qkv, shared.keys_full, static_cast<int>(at.value_column), k0, at.sample);
  for (int t = 0; !walk.done(); walk.advance(), ++t) {
    const int stage = t % stages, q0 = walk.tile * query_tile;
    ptx::Barrier& full = shared.query_ring.full[stage];
    shared.query_ring.wait_free(t);
    ptx::arrive_expecting(full, sizeof shared.queries[0] + sizeof shared.d_out[0] + sizeof shared.terms[0]);
    load_tile<D, query_tile, query_tile>(shared.queries[stage], qkv, full, walk.head * D, q0, at.sample);
    load_tile<D, query_tile, query_tile>(shared.d_out[stage], d_out, full, walk.head * D, q0, at.sample);
    ptx::load_bytes(shared.terms[stage], p.terms_of(at.sample, walk.head) + q0, sizeof shared.terms[0], full);
  }
}

// 64 keys of warpgroup w: columns k and v of d_qkv.
template <int D>
__device__ __forceinline__ void differentiate(Shared<D>& shared, const AttentionBackward& p, Scale scale, const HeadPlace& at, int k0, Walk walk, int w) {
  const AttentionShape& s = p.shape;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = warp_index() % 4;
  const KeyWarp own(k0 + w * 64 + warp * 16, 16, key_tile, s.seq_len, documents_of(s, at.sample));
  bf16 *keys = element_of_tile<key_tile>(shared.keys, w * 64, 0), *values = element_of_tile<key_tile>(shared.values, w * 64, 0);
  Accumulator<1, D / 8> dk, dv;
  Accumulator<1, query_tile / 8> scores, gradients;
  Fragments<1, query_tile / 16> probabilities, score_gradients;
  ptx::wait(shared.keys_full, 0);
#pragma unroll 1
  for (int t = 0; !walk.done(); walk.advance(), ++t) {
    const int stage = t % stages, q0 = walk.tile * query_tile;
    const float2* terms = shared.terms[stage];
    shared.query_ring.wait_full(t);
    ptx::wgmma_fence();
    multiply_rows<D, key_tile>(scores, keys, shared.queries[stage]);
    multiply_rows<D, key_tile>(gradients, values, shared.d_out[stage]);
    ptx::wgmma_wait<1>();
    if (own.needs_mask(q0, query_tile)) own.mask(scores, q0, lane);
    to_probabilities(scores, terms, scale.log2, lane);
    to_operand(probabilities, scores);
    ptx::wgmma_fence();
    multiply_weighted<D>(dv, probabilities, shared.d_out[stage], true);
    ptx::wgmma_wait<1>();
    to_score_gradients(gradients, scores, terms, lane);
    to_operand(score_gradients, gradients);
    ptx::wgmma_fence();
    multiply_weighted<D>(dk, score_gradients, shared.queries[stage], true);
    ptx::wgmma_wait<0>();
    __syncwarp();   // all lanes have read the terms
    shared.query_ring.release(t, lane);
  }
  wait_for_warpgroup(w);   // its keys and values have been read
  const int valid = own.last - own.first + 1;
  const int64_t ld = at.ld;
  bf16* to = static_cast<bf16*>(p.d_qkv) + (at.row0 + own.first) * ld;
  float factor[1][2];
  fill(factor, scale.plain);
  store_rows<D, key_tile>(to + at.key_column, ld, valid, keys, warp * 16, dk, factor, lane);
  fill(factor, 1.0f);
  store_rows<D, key_tile>(to + at.value_column, ld, valid, values, warp * 16, dv, factor, lane);
}

template <int D>
__global__ void __launch_bounds__(wgmma_threads, 1) backward_keys(AttentionBackward p, Scale scale, const __grid_constant__ TensorMap qkv, const __grid_constant__ TensorMap d_out) {
  static_assert(D == 64 || D == 128, "rows are one or two boxes of 64 columns");
  static_assert(sizeof(Shared<D>) <= 232448, "what a CTA of compute capability 9.0 may ask for");
#ifdef OCTET_WGMMA
  Shared<D>& shared = *ptx::dynamic_shared<Shared<D>>();
  const AttentionShape& s = p.shape;
  const int k0 = static_cast<int>(blockIdx.y) * key_tile, kv_head = static_cast<int>(blockIdx.x) % s.kv_heads;
  const HeadPlace at = head_place(s, static_cast<int>(blockIdx.x) / s.kv_heads, 0, kv_head);
  const int32_t* document = documents_of(s, at.sample);
  const int query_end = document ? first_query_beyond(document, min(k0 + key_tile, s.seq_len) - 1, s.seq_len) : s.seq_len;
  const Walk walk{kv_head * s.group(), k0 / query_tile, k0 / query_tile, (query_end + query_tile - 1) / query_tile, (kv_head + 1) * s.group()};
  if (threadIdx.x == 0) {
    ptx::prefetch_map(qkv);
    ptx::prefetch_map(d_out);
    ptx::barrier_init(shared.keys_full, 1);
    shared.query_ring.init();
    ptx::barrier_init_fence();
  }
  __syncthreads();
  split_roles([&] { load_tiles<D>(shared, p, qkv, d_out, at, k0, walk); }, [&](int w) { differentiate<D>(shared, p, scale, at, k0, walk, w); });
#else
  __trap();   // code of another machine
#endif
}

template <int D>
void launch_keys(cudaStream_t stream, const AttentionBackward& p) {
  const AttentionShape& s = p.shape;
  const dim3 grid(static_cast<unsigned>(s.samples * s.kv_heads), blocks_for(s.seq_len, key_tile));
  launch("dK and dV of attention (wgmma)", stream, backward_keys<D>, grid, wgmma_threads, sizeof(Shared<D>), p, scale_of(s), map_of_heads(s, p.qkv, s.heads + 2 * s.kv_heads, query_tile),
         map_of_heads(s, p.d_out, s.heads, query_tile));
}

}  // namespace

void launch_attention_backward_keys_wgmma(cudaStream_t stream, const AttentionBackward& p) {
  if (p.shape.head_dim == 64) launch_keys<64>(stream, p);
  else launch_keys<128>(stream, p);
}

}  // namespace octet::cuda
