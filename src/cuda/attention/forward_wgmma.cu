// Forward of the wgmma family (kernels.h): FlashAttention-3 (Shah et al., arXiv 2407.08608, algorithms 1 and 2) on Hopper.
//
// A CTA has 128 queries of one head, 64 of each of two warpgroups that multiply; a third warpgroup's first thread lets the copy engine bring keys and values, two tiles of 128 in flight. Tiles
// are walked from the diagonal down, so that the masked ones are the first, and the first has a key for every query. Within a warpgroup the scores of a tile are multiplied beside the
// softmax of the tile before; the two warpgroups take turns at the tensor cores, so that one's softmax runs beside the other's products.
// CTAs with most keys are launched first; all heads of a query tile run beside each other and share the keys of a group through L2.
//
// Registers a thread: 240 of the multiplying warpgroups, 24 of the third. Shared memory: d 64: 80 KiB, d 128: 160 KiB.
#include "cuda/attention/tile.cuh"
#include "cuda/attention/wgmma.cuh"
#include "cuda/launch.h"
#include "cuda/ptx/barrier.h"
#include "cuda/ptx/wgmma.h"

namespace octet::cuda {
namespace {

constexpr int query_tile = 128, key_tile = 128, stages = 2, consumers = 2, threads = (consumers + 1) * warpgroup_threads;

template <int D>
struct Shared {
  alignas(1024) bf16 queries[query_tile * D];
  bf16 keys[stages][key_tile * D], values[stages][key_tile * D];
  ptx::Barrier queries_full, keys_full[stages], keys_free[stages], values_full[stages], values_free[stages];
};
template <int D>
constexpr size_t shared_bytes = sizeof(Shared<D>);

// The tiles of keys that a CTA's queries see, last one first.
struct KeyTiles {
  int first, last;
  __device__ __forceinline__ int count() const { return last - first + 1; }
};

// A warpgroup's turn at the tensor cores: the barrier of number 1 + w belongs to warpgroup w.
__device__ __forceinline__ void take_turn(int w) { ptx::named_wait(1 + w, consumers * warpgroup_threads); }
__device__ __forceinline__ void pass_turn(int w) { ptx::named_arrive(1 + (w + 1) % consumers, consumers * warpgroup_threads); }

template <int D>
__device__ __forceinline__ void load_tiles(Shared<D>& shared, const TensorMap& map, const HeadPlace& at, int q0, KeyTiles tiles) {
  ptx::arrive_expecting(shared.queries_full, sizeof shared.queries);
  load_tile<D, query_tile, key_tile>(shared.queries, map, shared.queries_full, static_cast<int>(at.query_column), q0, at.sample);
  for (int t = 0; t < tiles.count(); ++t) {
    const int stage = t % stages, k0 = (tiles.last - t) * key_tile;
    const uint32_t before = static_cast<uint32_t>(t / stages % 2) ^ 1;   // parity of the phase in which the stage was read last
    ptx::wait(shared.keys_free[stage], before);
    ptx::arrive_expecting(shared.keys_full[stage], sizeof shared.keys[0]);
    load_tile<D, key_tile, key_tile>(shared.keys[stage], map, shared.keys_full[stage], static_cast<int>(at.key_column), k0, at.sample);
    ptx::wait(shared.values_free[stage], before);
    ptx::arrive_expecting(shared.values_full[stage], sizeof shared.values[0]);
    load_tile<D, key_tile, key_tile>(shared.values[stage], map, shared.values_full[stage], static_cast<int>(at.value_column), k0, at.sample);
  }
}

// Of one row of scores: the running maximum, this lane's share of the running sum.
struct RowState {
  float largest = minus_infinity, sum = 0.0f;
};

// Scores become P relative to the new maximum; correction: what brings earlier results to it.
template <int N>
__device__ __forceinline__ void online_softmax(float (&scores)[N], RowState (&state)[2], float (&correction)[2], float scale_log2) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float largest = state[half].largest;
#pragma unroll
    for (int i = 0; i < N; i += 4) largest = fmaxf(largest, fmaxf(scores[i + half * 2], scores[i + half * 2 + 1]));
    largest = fmaxf(largest, __shfl_xor_sync(all_lanes, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(all_lanes, largest, 2));
    const float shift = largest == minus_infinity ? 0.0f : largest * scale_log2;   // scores may overflow
    correction[half] = ptx::exp2_approx(fmaf(state[half].largest, scale_log2, -shift));
    float sum = state[half].sum * correction[half];
#pragma unroll
    for (int i = 0; i < N; i += 4) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& x = scores[i + half * 2 + e];
        x = ptx::exp2_approx(fmaf(x, scale_log2, -shift));
        sum += x;
      }
    }
    state[half] = {largest, sum};
  }
}

template <int D>
__device__ __forceinline__ void multiply_scores(float (&scores)[key_tile / 2], const bf16* queries, const bf16* keys) {
#pragma unroll
  for (int k = 0; k < D / 16; ++k) ptx::wgmma_bf16(scores, ptx::wgmma_rows(element_of_tile<query_tile>(queries, 0, k * 16)), ptx::wgmma_rows(element_of_tile<key_tile>(keys, 0, k * 16)), k > 0);
  ptx::wgmma_commit();
}
template <int D>
__device__ __forceinline__ void multiply_values(float (&out)[D / 2], const uint32_t (&p)[key_tile / 16][4], const bf16* values, bool accumulate) {
#pragma unroll
  for (int k = 0; k < key_tile / 16; ++k) ptx::wgmma_bf16<true>(out, p[k], ptx::wgmma_columns(element_of_tile<key_tile>(values, k * 16, 0), key_tile * 128), accumulate || k > 0);
  ptx::wgmma_commit();
}

// 64 queries of warpgroup w: out and lse.
template <int D>
__device__ __forceinline__ void attend(Shared<D>& shared, const AttentionForward& p, Scale scale, const HeadPlace& at, int q0, KeyTiles tiles, int w) {
  const AttentionShape& s = p.shape;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = warp_index() % 4;
  const QueryWarp rows(q0 + w * 64 + warp * 16, 16, s.seq_len, documents_of(s, at.sample));
  bf16* queries = element_of_tile<query_tile>(shared.queries, w * 64, 0);
  const auto free = [&](ptx::Barrier& b) {
    if (lane == 0) ptx::arrive(b);
  };
  float scores[key_tile / 2], out[D / 2] = {}, correction[2];
  uint32_t probabilities[key_tile / 16][4];
  RowState state[2];
  const auto mask = [&](int tile) {
    if (rows.needs_mask(tile * key_tile, key_tile)) mask_scores(scores, rows, tile * key_tile, lane);
  };

  if (w == consumers - 1) pass_turn(w);   // the first turn is the first warpgroup's
  ptx::wait(shared.queries_full, 0);
  ptx::wait(shared.keys_full[0], 0);
  ptx::wgmma_fence();
  multiply_scores<D>(scores, queries, shared.keys[0]);
  ptx::wgmma_wait<0>();
  free(shared.keys_free[0]);
  mask(tiles.last);
  online_softmax(scores, state, correction, scale.log2);
  to_operand(probabilities, scores);
#pragma unroll 1
  for (int t = 1; t < tiles.count(); ++t) {
    const int stage = t % stages, before = (t - 1) % stages;
    ptx::wait(shared.keys_full[stage], static_cast<uint32_t>(t / stages % 2));
    take_turn(w);
    ptx::wgmma_fence();
    multiply_scores<D>(scores, queries, shared.keys[stage]);
    ptx::wait(shared.values_full[before], static_cast<uint32_t>((t - 1) / stages % 2));
    ptx::wgmma_fence();   // again, behind a loop
    multiply_values<D>(out, probabilities, shared.values[before], t > 1);
    pass_turn(w);
    ptx::wgmma_wait<1>();
    free(shared.keys_free[stage]);
    mask(tiles.last - t);
    online_softmax(scores, state, correction, scale.log2);
    ptx::wgmma_wait<0>();
    free(shared.values_free[before]);
#pragma unroll
    for (int i = 0; i < D / 2; ++i) out[i] *= correction[i / 2 % 2];
    to_operand(probabilities, scores);
  }
  if (w == 0) take_turn(w);   // the one that is left over
  const int last = (tiles.count() - 1) % stages;
  ptx::wait(shared.values_full[last], static_cast<uint32_t>((tiles.count() - 1) / stages % 2));
  ptx::wgmma_fence();
  multiply_values<D>(out, probabilities, shared.values[last], tiles.count() > 1);
  ptx::wgmma_wait<0>();

  float inverse[2];
  float* lse = p.lse + (static_cast<int64_t>(at.sample) * s.heads + at.head) * s.seq_len;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float sum = state[half].sum;
    sum += __shfl_xor_sync(all_lanes, sum, 1);
    sum += __shfl_xor_sync(all_lanes, sum, 2);
    inverse[half] = 1.0f / sum;
    const int row = rows.first + half * 8 + lane / 4;
    if (lane % 4 == 0 && row <= rows.last) lse[row] = fmaf(state[half].largest, scale.plain, logf(sum));
  }
  const int64_t out_ld = static_cast<int64_t>(s.heads) * D;
  wait_for_warpgroup(w);   // its queries have been read
  store_rows<D, query_tile>(static_cast<bf16*>(p.out) + (at.row0 + rows.first) * out_ld + at.query_column, out_ld, rows.last - rows.first + 1, queries, warp * 16, out, inverse, lane);
}

template <int D>
__global__ void __launch_bounds__(threads, 1) attention_forward(AttentionForward p, Scale scale, const __grid_constant__ TensorMap map) {
  static_assert(D == 64 || D == 128, "rows are one or two boxes of 64 columns");
  static_assert(sizeof(Shared<D>) <= 232448, "what a CTA of compute capability 9.0 may ask for");
#ifdef OCTET_WGMMA
  Shared<D>& shared = *ptx::dynamic_shared<Shared<D>>();
  const AttentionShape& s = p.shape;
  const int q0 = static_cast<int>(gridDim.y - 1 - blockIdx.y) * query_tile, head = static_cast<int>(blockIdx.x) % s.heads, w = warp_index() / 4;
  const HeadPlace at = head_place(s, static_cast<int>(blockIdx.x) / s.heads, head, head / s.group());
  const int32_t* document = documents_of(s, at.sample);
  const KeyTiles tiles{document ? document[q0] / key_tile : 0, (min(q0 + query_tile, s.seq_len) - 1) / key_tile};
  if (threadIdx.x == 0) {
    ptx::prefetch_map(map);
    ptx::barrier_init(shared.queries_full, 1);
    for (int i = 0; i < stages; ++i) {
      ptx::barrier_init(shared.keys_full[i], 1);
      ptx::barrier_init(shared.values_full[i], 1);
      ptx::barrier_init(shared.keys_free[i], consumers * 4);   // of each warp
      ptx::barrier_init(shared.values_free[i], consumers * 4);
    }
    ptx::barrier_init_fence();
  }
  __syncthreads();
  if (w == consumers) {
    ptx::give_registers<24>();
    if (threadIdx.x % warpgroup_threads == 0) load_tiles<D>(shared, map, at, q0, tiles);
  } else {
    ptx::take_registers<240>();
    attend<D>(shared, p, scale, at, q0, tiles, w);
  }
#else
  __trap();   // code of another machine
#endif
}

template <int D>
void launch_forward(cudaStream_t stream, const AttentionForward& p) {
  const AttentionShape& s = p.shape;
  check(cudaFuncSetAttribute(attention_forward<D>, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes<D>)), "shared memory of attention");
  const dim3 grid(static_cast<unsigned>(s.samples * s.heads), blocks_for(s.seq_len, query_tile));
  launch("attention (wgmma)", stream, attention_forward<D>, grid, threads, shared_bytes<D>, p, scale_of(s), map_of_heads(s, p.qkv, s.heads + 2 * s.kv_heads, key_tile));
}

}  // namespace

bool wgmma_attention_serves(const AttentionShape& s) { return !s.wide && (s.head_dim == 64 || s.head_dim == 128); }

void launch_attention_wgmma(cudaStream_t stream, const AttentionForward& p) {
  if (p.shape.head_dim == 64) launch_forward<64>(stream, p);
  else launch_forward<128>(stream, p);
}

}  // namespace octet::cuda
