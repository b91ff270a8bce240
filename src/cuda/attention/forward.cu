// Forward of the mma family (kernels.h): FlashAttention-2 (arXiv 2307.08691, algorithm 1).
//
// A CTA has 128 queries of one head and walks over key tiles of 64, two in flight by cp.async, one barrier a tile. CTAs with most keys are launched
// first (blockIdx.y counts query tiles from the end), all heads of a query tile beside each other, so that the CTAs that run at a time share the keys of a
// group through L2 and the last wave is made of short ones.
//
// Registers a thread and shared memory a CTA (nvcc 13.0, sm_90a): d 64: 246, 54 KiB; d 128: 255, 102 KiB; two CTAs of 4 warps an SM. d 192, 256: 213, 254
// registers, 150, 198 KiB, one CTA of 8 warps. Nothing is spilled; with images d 128 would spill 64 bytes in the loop over keys.
// The tile of a warp at d 128 is 256 products and 80 loads of matrices: for the four warps of a CTA 1280 cycles of shared memory, 256 more to fill it, beside about 1470 of the tensor cores. Neither can gain much alone.
#include "cuda/attention/softmax.cuh"
#include "cuda/attention/tile.cuh"
#include "cuda/kernels/quantize_tile.cuh"
#include "cuda/launch.h"

namespace octet::cuda {
namespace {

constexpr int query_tile = 128, key_tile = 64;

// Whether out's images or amax can be taken along.
template <int D>
constexpr bool quantizes = D != 128;

template <int D>
struct Plan {
  static constexpr int m = D <= 128 ? 2 : 1, warps = query_tile / (16 * m), threads = 32 * warps;
  static constexpr bool queries_in_registers = D <= 64;   // else there is no room beside out and scores
  static constexpr size_t shared = tile_bytes<D>(query_tile + 4 * key_tile);
  static_assert(sizeof(TileShared<true>) <= tile_bytes<D>(4 * key_tile), "what quantizing needs lies where keys and values lay");
};

// The CTA's rows of out, which store_rows has left rounded in shared memory, from `row` on: their amax or their images. `column`: the head's first.
template <int D>
__device__ __forceinline__ void quantize_out(const AttentionForward& p, const bf16* staged, bf16* free_memory, int64_t row, int64_t row_end, int64_t column) {
  constexpr int threads = Plan<D>::threads;
  TileShared<true>& shared = *reinterpret_cast<TileShared<true>*>(free_memory);
  const AttentionShape& s = p.shape;
  __syncthreads();   // all rows are staged, and nobody reads keys and values
  for (int first = 0; first < s.head_dim; first += quantized_tile) {
    const TilePlace tile{s.samples * s.seq_len, static_cast<int64_t>(s.heads) * s.head_dim, row, column + first, row_end, column + s.head_dim};
    const StagedTile<threads, tile_stride<D>> content{staged + first, static_cast<int>(row_end - row), s.head_dim - first};
    if (p.amax) {
      const uint32_t m = tile_magnitude(content);
      if (threadIdx.x == 0) atomicMax(p.amax, __float_as_uint(amax_of(m)));
    } else {
      quantize_content<true, true>(p.images, tile, content, shared);
    }
  }
}

// Quantizes: out's amax or images are wanted.
template <int D, bool Quantizes>
__global__ void __launch_bounds__(Plan<D>::threads, D <= 128 ? 2 : 1) attention_forward(AttentionForward p, Scale scale) {
  using P = Plan<D>;
  constexpr int M = P::m, N = key_tile / 8;
  bf16* queries = ptx::dynamic_shared<bf16>();
  bf16* tiles = queries + query_tile * tile_stride<D>;   // keys, values, keys, values
  constexpr int tile_elements = key_tile * tile_stride<D>;
  const AttentionShape& s = p.shape;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp_row = warp_index() * 16 * M;
  const int q0 = static_cast<int>(gridDim.y - 1 - blockIdx.y) * query_tile, head = static_cast<int>(blockIdx.x) % s.heads;
  const HeadPlace at = head_place(s, static_cast<int>(blockIdx.x) / s.heads, head, head / s.group());
  const int32_t* document = documents_of(s, at.sample);
  const bf16* qkv = static_cast<const bf16*>(p.qkv) + at.row0 * at.ld;
  const QueryWarp warp(q0 + warp_row, 16 * M, s.seq_len, document);

  const auto copy_keys = [&](int tile) {
    const bf16* rows = qkv + static_cast<int64_t>(tile) * key_tile * at.ld;
    bf16* to = tiles + tile % 2 * 2 * tile_elements;
    copy_tile<key_tile, D, P::threads, 2>(to, rows + at.key_column, at.ld, s.seq_len - tile * key_tile, s.head_dim, s.kv_heads * s.head_dim);
    ptx::copy_async_commit();
  };
  const int first_tile = document ? document[q0] / key_tile : 0, last_tile = min(q0 + query_tile, s.seq_len) - 1;
  copy_tile<query_tile, D, P::threads>(queries, qkv + static_cast<int64_t>(q0) * at.ld + at.query_column, at.ld, s.seq_len - q0, s.head_dim);
  copy_keys(first_tile);

  bf16* own = queries + warp_row * tile_stride<D>;
  Fragments<M, P::queries_in_registers ? D / 16 : 1> query;
  if constexpr (P::queries_in_registers) {
    ptx::copy_async_wait<0>();
    __syncthreads();
    load_rows<D>(query, own, lane);
  }
  Accumulator<M, D / 8> out;
  Softmax<M> state;
  for (int tile = first_tile; tile <= last_tile / key_tile; ++tile) {
    ptx::copy_async_wait<0>();
    __syncthreads();   // this tile is there for all, and nobody reads the one before
    if (tile < last_tile / key_tile) copy_keys(tile + 1);
    if (!warp.sees(tile * key_tile, key_tile)) continue;
    const bf16 *keys = tiles + tile % 2 * 2 * tile_elements, *values = keys + tile_elements;
    Accumulator<M, N> scores;
    if constexpr (P::queries_in_registers) {
      add_scores<D>(scores, query, keys, lane);
    } else {
      add_scores<D>(scores, own, keys, lane);
    }
    if (warp.needs_mask(tile * key_tile, key_tile)) warp.mask(scores, tile * key_tile, lane);
    float correction[M][2];
    if (online_softmax(scores, state, correction, scale.log2)) scale_rows(out, correction);
    Fragments<M, N / 2> probabilities;
    to_operand(probabilities, scores);
    add_weighted<D>(out, probabilities, values, lane);
  }
  float inverse[M][2];
  finish(state, scale.plain, warp, p.lse + s.lse_at(at.sample, head), inverse, lane);
  const int64_t out_ld = static_cast<int64_t>(s.heads) * s.head_dim;
  store_rows<D>(static_cast<bf16*>(p.out) + (at.row0 + warp.first) * out_ld + at.query_column, out_ld, warp.last - warp.first + 1, s.head_dim, own, out, inverse, lane);
  if constexpr (Quantizes) quantize_out<D>(p, queries, tiles, at.row0 + q0, at.row0 + s.seq_len, at.query_column);
}

}  // namespace

bool mma_attention_serves(const AttentionShape& s) { return !s.wide && s.head_dim % 16 == 0 && s.head_dim <= 256; }

bool attention_quantizes(int head_dim) {
  return with_padded_head_dim(head_dim, [](auto padded) { return quantizes<decltype(padded)::d>; });
}
size_t attention_shared_bytes(int head_dim) {
  return with_padded_head_dim(head_dim, [](auto padded) { return Plan<decltype(padded)::d>::shared; });
}

void launch_attention(cudaStream_t stream, const AttentionForward& p) {
  with_padded_head_dim(p.shape.head_dim, [&](auto padded) {
    constexpr int d = decltype(padded)::d;
    using P = Plan<d>;
    auto* kernel = attention_forward<d, false>;
    if constexpr (quantizes<d>) {
      if (p.amax || p.writes_images()) kernel = attention_forward<d, true>;
    }
    const dim3 grid(static_cast<unsigned>(p.shape.samples * p.shape.heads), blocks_for(p.shape.seq_len, query_tile));
    launch("attention", stream, kernel, grid, P::threads, P::shared, p, scale_of(p.shape));
  });
}

}  // namespace octet::cuda
