// Pieces of the wgmma family (kernels.h): tiles in shared memory as the copy engine leaves them, masks, and what goes from one product's registers into the next.
//
// A tile of R rows and D columns is D / 64 boxes of [R, 64] behind each other, rows of 128 bytes with the 128-byte swizzle (ptx/matrix_descriptor.h).
// A CTA is two warpgroups that multiply and one whose first thread lets the copy engine bring tiles; each warp of the former has 16 rows: Accumulator<1, N>.
#pragma once
#include <cuda_runtime.h>

#include "cuda/attention/softmax.cuh"
#include "cuda/attention/tile.cuh"
#include "cuda/ptx/barrier.h"
#include "cuda/ptx/wgmma.h"
#include "cuda/tensor_map.h"

// Where the compiler makes code for the machine that has these instructions; elsewhere the kernels only trap.
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define OCTET_WGMMA
#endif

namespace octet::cuda {

constexpr int warpgroup_threads = 128, consumers = 2, wgmma_threads = (consumers + 1) * warpgroup_threads, box_columns = 64;

// The two parts of a CTA: produce() by one thread, consume(w) by warpgroup w. Registers add up to what wgmma_threads threads have.
template <class P, class C>
__device__ __forceinline__ void split_roles(const P& produce, const C& consume) {
  const int w = warp_index() / 4;
  if (w == consumers) {
    ptx::give_registers<24>();
    if (threadIdx.x % warpgroup_threads == 0) produce();
  } else {
    ptx::take_registers<240>();
    consume(w);
  }
}

// Stages of tiles between the two: `full` when the copy engine's bytes are there, `free` when each warp of the consumers has arrived.
template <int Stages>
struct Ring {
  ptx::Barrier full[Stages], free[Stages];

  __device__ __forceinline__ void init() {
    for (int i = 0; i < Stages; ++i) {
      ptx::barrier_init(full[i], 1);
      ptx::barrier_init(free[i], consumers * 4);
    }
  }
  // Tile t: its stage is t % Stages.
  __device__ __forceinline__ void wait_free(int t) { ptx::wait(free[t % Stages], static_cast<uint32_t>(t / Stages % 2) ^ 1); }
  __device__ __forceinline__ void wait_full(int t) { ptx::wait(full[t % Stages], static_cast<uint32_t>(t / Stages % 2)); }
  __device__ __forceinline__ void release(int t, int lane) {
    if (lane == 0) ptx::arrive(free[t % Stages]);
  }
};

// All warps of warpgroup w; barriers 1 and 2 belong to the forward's turns.
__device__ __forceinline__ void wait_for_warpgroup(int w) { ptx::named_wait(3 + w, warpgroup_threads); }

// The element (row, column) of a tile's box, where row % 8 == 0 and the address is for a descriptor or a whole row: without the swizzle.
template <int Rows, class T>
__device__ __forceinline__ T* element_of_tile(T* tile, int row, int column) {
  return tile + column / box_columns * (Rows * box_columns) + row * box_columns + column % box_columns;
}

// 16-byte unit u of row r, with the swizzle.
template <int Rows>
__device__ __forceinline__ bf16* unit_of_tile(bf16* tile, int r, int u) { return element_of_tile<Rows>(tile, r, u / 8 * box_columns) + (u % 8 ^ r % 8) * 8; }

// Lets the copy engine bring Rows rows of D columns, in boxes of BoxRows.
template <int D, int Rows, int BoxRows>
__device__ __forceinline__ void load_tile(bf16* tile, const TensorMap& map, ptx::Barrier& full, int column, int row, int sample) {
#pragma unroll
  for (int c = 0; c < D; c += box_columns) {
#pragma unroll
    for (int r = 0; r < Rows; r += BoxRows) ptx::load_box(element_of_tile<Rows>(tile, r, c), map, full, column + c, row + r, sample);
  }
}

// 16 rows of a tile from row0 on, a warp's, as A operands.
template <int D, int Rows>
__device__ __forceinline__ void load_operand(Fragments<1, D / 16>& out, bf16* tile, int row0, int lane) {
#pragma unroll
  for (int k = 0; k < D / 16; ++k) ptx::load_matrix_x4(out.of[0][k], unit_of_tile<Rows>(tile, row0 + lane % 16, k * 2 + lane / 16));
}

// acc[64 x 8 N] = rows . tile^T, both D wide; `rows`: 64 of a tile of RowsTile, or the warps' fragments. A group of its own.
template <int D, int RowsTile, int N>
__device__ __forceinline__ void multiply_rows(Accumulator<1, N>& acc, const bf16* rows, const bf16* tile) {
#pragma unroll
  for (int k = 0; k < D / 16; ++k) {
    ptx::wgmma_bf16(acc.of[0], ptx::wgmma_rows(element_of_tile<RowsTile>(rows, 0, k * 16)), ptx::wgmma_rows(element_of_tile<8 * N>(tile, 0, k * 16)), k > 0);
  }
  ptx::wgmma_commit();
}
template <int D, int N>
__device__ __forceinline__ void multiply_rows(Accumulator<1, N>& acc, const Fragments<1, D / 16>& rows, const bf16* tile) {
#pragma unroll
  for (int k = 0; k < D / 16; ++k) ptx::wgmma_bf16<false>(acc.of[0], rows.of[0][k], ptx::wgmma_rows(element_of_tile<8 * N>(tile, 0, k * 16)), k > 0);
  ptx::wgmma_commit();
}
// acc[64 x D] = weights . tile, or += where `accumulate`; 16 K rows of the tile. A group of its own.
template <int D, int K>
__device__ __forceinline__ void multiply_weighted(Accumulator<1, D / 8>& acc, const Fragments<1, K>& weights, const bf16* tile, bool accumulate) {
  constexpr int rows = 16 * K;
#pragma unroll
  for (int k = 0; k < K; ++k) ptx::wgmma_bf16<true>(acc.of[0], weights.of[0][k], ptx::wgmma_columns(element_of_tile<rows>(tile, k * 16, 0), rows * 128), accumulate || k > 0);
  ptx::wgmma_commit();
}

// [samples, seq_len, heads * head_dim], boxes of `rows` rows; heads: all that lie in a row.
inline TensorMap map_of_heads(const AttentionShape& s, const void* data, int heads, int rows) {
  const uint64_t columns = static_cast<uint64_t>(heads) * static_cast<uint64_t>(s.head_dim), length = static_cast<uint64_t>(s.seq_len);
  return make_tensor_map({data, sizeof(bf16), {columns, length, static_cast<uint64_t>(s.samples)}, {columns * sizeof(bf16), length * columns * sizeof(bf16)}, {box_columns, static_cast<uint32_t>(rows), 1}});
}

// Writes factor * acc, rounded, to 16 rows of memory: through the warp's own rows `row0`.. of a tile of shared memory that nobody else reads any more, so that a lane stores 16 bytes.
template <int D, int Rows>
__device__ __forceinline__ void store_rows(bf16* to, int64_t ld, int valid, bf16* tile, int row0, const Accumulator<1, D / 8>& acc, const float (&factor)[1][2], int lane) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int r = half * 8 + lane / 4;
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      *reinterpret_cast<uint32_t*>(unit_of_tile<Rows>(tile, row0 + r, n) + lane % 4 * 2) = ptx::pack_bf16(acc.of[0][n][half * 2] * factor[0][half], acc.of[0][n][half * 2 + 1] * factor[0][half]);
    }
  }
  __syncwarp();
  for (int i = lane; i < 16 * D / 8; i += 32) {
    const int r = i / (D / 8), u = i % (D / 8);
    if (r < valid) ptx::store_16(to + r * ld + u * 8, *reinterpret_cast<const uint4*>(unit_of_tile<Rows>(tile, row0 + r, u)));
  }
}

}  // namespace octet::cuda
