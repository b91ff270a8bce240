// Pieces of the wgmma family (kernels.h): tiles in shared memory as the copy engine leaves them, masks, and what goes from one product's registers into the next.
//
// A tile of R rows and D columns is D / 64 boxes of [R, 64] behind each other, rows of 128 bytes with the 128-byte swizzle (ptx/wgmma.h).
#pragma once
#include <cuda_runtime.h>

#include "cuda/attention/tile.cuh"
#include "cuda/ptx/barrier.h"
#include "cuda/ptx/wgmma.h"
#include "cuda/tensor_map.h"

// Where the compiler makes code for the machine that has these instructions; elsewhere the kernels are empty, and never launched.
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define OCTET_WGMMA
#endif

namespace octet::cuda {

constexpr int warpgroup_threads = 128, box_columns = 64;

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
__device__ __forceinline__ void load_operand(uint32_t (&out)[D / 16][4], bf16* tile, int row0, int lane) {
#pragma unroll
  for (int k = 0; k < D / 16; ++k) ptx::load_matrix_x4(out[k], unit_of_tile<Rows>(tile, row0 + lane % 16, k * 2 + lane / 16));
}

// [samples, seq_len, heads * head_dim], boxes of `rows` rows; heads: all that lie in a row.
inline TensorMap map_of_heads(const AttentionShape& s, const void* data, int heads, int rows) {
  const uint64_t columns = static_cast<uint64_t>(heads) * static_cast<uint64_t>(s.head_dim), length = static_cast<uint64_t>(s.seq_len);
  return make_tensor_map({data, sizeof(bf16), {columns, length, static_cast<uint64_t>(s.samples)}, {columns * sizeof(bf16), length * columns * sizeof(bf16)}, {box_columns, static_cast<uint32_t>(rows), 1}});
}

// Scores of keys k0.. that a row does not see become -Inf.
template <int N>
__device__ __forceinline__ void mask_scores(float (&scores)[N], const QueryWarp& rows, int k0, int lane) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = rows.first + half * 8 + lane / 4, from = rows.document && row <= rows.last ? rows.document[row] : 0;
#pragma unroll
    for (int i = 0; i < N; i += 4) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int key = k0 + i * 2 + lane % 4 * 2 + e;
        if (key > row || key < from) scores[i + half * 2 + e] = minus_infinity;
      }
    }
  }
}

// Results of one product, rounded, as the A operand of the next.
template <int N>
__device__ __forceinline__ void to_operand(uint32_t (&out)[N / 8][4], const float (&x)[N]) {
#pragma unroll
  for (int i = 0; i < N; i += 2) out[i / 8][i / 2 % 4] = ptx::pack_bf16(x[i], x[i + 1]);
}

// Writes factor * acc, rounded, to 16 rows of memory: through the warp's own rows `row0`.. of a tile of shared memory that nobody else reads any more, so that a lane stores 16 bytes.
template <int D, int Rows>
__device__ __forceinline__ void store_rows(bf16* to, int64_t ld, int valid, bf16* tile, int row0, const float (&acc)[D / 2], const float (&factor)[2], int lane) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int r = half * 8 + lane / 4;
#pragma unroll
    for (int i = 0; i < D / 2; i += 4) {
      *reinterpret_cast<uint32_t*>(unit_of_tile<Rows>(tile, row0 + r, i / 4) + lane % 4 * 2) = ptx::pack_bf16(acc[i + half * 2] * factor[half], acc[i + half * 2 + 1] * factor[half]);
    }
  }
  __syncwarp();
  for (int i = lane; i < 16 * D / 8; i += 32) {
    const int r = i / (D / 8), u = i % (D / 8);
    if (r < valid) ptx::store_16(to + r * ld + u * 8, *reinterpret_cast<const uint4*>(unit_of_tile<Rows>(tile, row0 + r, u)));
  }
}

}  // namespace octet::cuda
