// Forward of the wgmma family (kernels.h): FlashAttention-3 (Shah et al., arXiv 2407.08608, algorithms 1 and 2) on Hopper.
//
// A CTA has 128 queries of one head, 64 of each of two warpgroups that multiply; a third warpgroup's first thread lets the copy engine bring keys and values, two tiles of 128 in flight. Tiles
// are walked from the diagonal down, so that the masked ones are the first, and the first has a key for every query. Within a warpgroup the scores of a tile are multiplied beside the
// softmax of the tile before; the two warpgroups take turns at the tensor cores, so that one's softmax runs beside the other's products.
// CTAs with most keys are launched first; all heads of a query tile run beside each other and share the keys of a group through L2.
//
// Registers a thread: 240 of the multiplying warpgroups, 24 of the third. Shared memory: d 64: 80 KiB, d 128: 160 KiB.
#include "cuda/attention/wgmma.cuh"
#include "cuda/launch.h"

namespace octet::cuda {
namespace {

constexpr int query_tile = 128, key_tile = 128, stages = 2;

template <int D>
struct Shared {
  alignas(1024) bf16 queries[query_tile * D];
  bf16 keys[stages][key_tile * D], values[stages][key_tile * D];
  ptx::Barrier queries_full;
  Ring<stages> key_ring, value_ring;
};

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
    shared.key_ring.wait_free(t);
    ptx::arrive_expecting(shared.key_ring.full[stage], sizeof shared.keys[0]);
    load_tile<D, key_tile, key_tile>(shared.keys[stage], map, shared.key_ring.full[stage], static_cast<int>(at.key_column), k0, at.sample);
    shared.value_ring.wait_free(t);
    ptx::arrive_expecting(shared.value_ring.full[stage], sizeof shared.values[0]);
    load_tile<D, key_tile, key_tile>(shared.values[stage], map, shared.value_ring.full[stage], static_cast<int>(at.value_column), k0, at.sample);
  }
}

// 64 queries of warpgroup w: out and lse.
template <int D>
__device__ __forceinline__ void attend(Shared<D>& shared, const AttentionForward& p, Scale scale, const HeadPlace& at, int q0, KeyTiles tiles, int w) {
  const AttentionShape& s = p.shape;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = warp_index() % 4;
  const QueryWarp rows(q0 + w * 64 + warp * 16, 16, s.seq_len, documents_of(s, at.sample));
  bf16* queries = element_of_tile<query_tile>(shared.queries, w * 64, 0);
  Accumulator<1, key_tile / 8> scores;
  Accumulator<1, D / 8> out;
  Fragments<1, key_tile / 16> probabilities;
  Softmax<1> state;
  float correction[1][2];
  const auto softmax_of = [&](int tile) {
    if (rows.needs_mask(tile * key_tile, key_tile)) rows.mask(scores, tile * key_tile, lane);
    online_softmax(scores, state, correction, scale.log2);
  };

  if (w == consumers - 1) pass_turn(w);   // the first turn is the first warpgroup's
  ptx::wait(shared.queries_full, 0);
  shared.key_ring.wait_full(0);
  ptx::wgmma_fence();
  multiply_rows<D, query_tile>(scores, queries, shared.keys[0]);
  ptx::wgmma_wait<0>();
  shared.key_ring.release(0, lane);
  softmax_of(tiles.last);
  to_operand(probabilities, scores);
  int t = 1;
#pragma unroll 1
  for (; t < tiles.count(); ++t) {
    shared.key_ring.wait_full(t);
    take_turn(w);
    ptx::wgmma_fence();
    multiply_rows<D, query_tile>(scores, queries, shared.keys[t % stages]);
    shared.value_ring.wait_full(t - 1);
    ptx::wgmma_fence();   // again, behind a loop
    multiply_weighted<D>(out, probabilities, shared.values[(t - 1) % stages], t > 1);
    pass_turn(w);
    ptx::wgmma_wait<1>();
    shared.key_ring.release(t, lane);
    softmax_of(tiles.last - t);
    ptx::wgmma_wait<0>();
    shared.value_ring.release(t - 1, lane);
    scale_rows(out, correction);
    to_operand(probabilities, scores);
  }
  if (w == 0) take_turn(w);   // the one that is left over
  shared.value_ring.wait_full(t - 1);
  ptx::wgmma_fence();
  multiply_weighted<D>(out, probabilities, shared.values[(t - 1) % stages], t > 1);
  ptx::wgmma_wait<0>();

  float inverse[1][2];
  finish(state, scale.plain, rows, p.lse + s.lse_at(at.sample, at.head), inverse, lane);
  const int64_t out_ld = static_cast<int64_t>(s.heads) * D;
  wait_for_warpgroup(w);   // its queries have been read
  store_rows<D, query_tile>(static_cast<bf16*>(p.out) + (at.row0 + rows.first) * out_ld + at.query_column, out_ld, rows.last - rows.first + 1, queries, warp * 16, out, inverse, lane);
}

template <int D>
__global__ void __launch_bounds__(wgmma_threads, 1) attention_forward(AttentionForward p, Scale scale, const __grid_constant__ TensorMap map) {
  static_assert(D == 64 || D == 128, "rows are one or two boxes of 64 columns");
  static_assert(sizeof(Shared<D>) <= 232448, "what a CTA of compute capability 9.0 may ask for");
#ifdef OCTET_WGMMA
  Shared<D>& shared = *ptx::dynamic_shared<Shared<D>>();
  const AttentionShape& s = p.shape;
  const int q0 = static_cast<int>(gridDim.y - 1 - blockIdx.y) * query_tile, head = static_cast<int>(blockIdx.x) % s.heads;
  const HeadPlace at = head_place(s, static_cast<int>(blockIdx.x) / s.heads, head, head / s.group());
  const int32_t* document = documents_of(s, at.sample);
  const KeyTiles tiles{document ? document[q0] / key_tile : 0, (min(q0 + query_tile, s.seq_len) - 1) / key_tile};
  if (threadIdx.x == 0) {
    ptx::prefetch_map(map);
    ptx::barrier_init(shared.queries_full, 1);
    shared.key_ring.init();
    shared.value_ring.init();
    ptx::barrier_init_fence();
  }
  __syncthreads();
  split_roles([&] { load_tiles<D>(shared, map, at, q0, tiles); }, [&](int w) { attend<D>(shared, p, scale, at, q0, tiles, w); });
#else
  __trap();   // code of another machine
#endif
}

template <int D>
void launch_forward(cudaStream_t stream, const AttentionForward& p) {
  const AttentionShape& s = p.shape;
  const dim3 grid(static_cast<unsigned>(s.samples * s.heads), blocks_for(s.seq_len, query_tile));
  launch("attention (wgmma)", stream, attention_forward<D>, grid, wgmma_threads, sizeof(Shared<D>), p, scale_of(s), map_of_heads(s, p.qkv, s.heads + 2 * s.kv_heads, key_tile));
}

}  // namespace

bool wgmma_attention_serves(const AttentionShape& s) { return !s.wide && (s.head_dim == 64 || s.head_dim == 128); }

void launch_attention_wgmma(cudaStream_t stream, const AttentionForward& p) {
  if (p.shape.head_dim == 64) launch_forward<64>(stream, p);
  else launch_forward<128>(stream, p);
}

}  // namespace octet::cuda
