// Pieces of the mma family (kernels.h): tiles in shared memory, products of a warp's own rows with a tile; and what the wgmma family shares: accumulators, masks, the walk over queries.
//
// A warp owns 16 M rows (queries, or keys in the backward of keys) of the CTA's tile and all of its columns, so that softmax and the second
// products need nothing from other warps. M = 2 where registers allow: each fragment of the other operand then serves two products. That matters on
// Hopper, where a warp-wide load of four 8x8 matrices takes 4 cycles of the SM's shared memory and mma.sync retires about one product in 1.6.
//
// Rows in shared memory lie D + 8 elements apart, an odd number of 16-byte units: eight consecutive rows begin in eight different bank groups,
// so no load or store of fragments has a conflict, and every address is a base plus a constant.
#pragma once
#include <cuda_runtime.h>

#include <cmath>

#include "cuda/attention/kernels.h"
#include "cuda/kernels/reduce.cuh"
#include "cuda/ptx/convert.h"
#include "cuda/ptx/memory.h"
#include "cuda/ptx/mma.h"
#include "numerics/bf16.h"

namespace octet::cuda {

constexpr float log2_e = 1.4426950408889634f, minus_infinity = -__builtin_huge_valf();

// Of scores, in units of 1 and of log 2; both kernel parameters, which products read without a register.
struct Scale {
  float plain, log2;
};
inline Scale scale_of(const AttentionShape& s) {
  const float scale = 1.0f / std::sqrt(static_cast<float>(s.head_dim));
  return {scale, scale * log2_e};
}

template <int D>
constexpr int tile_stride = D + 8;
template <int D>
constexpr size_t tile_bytes(int rows) { return static_cast<size_t>(rows) * tile_stride<D> * sizeof(bf16); }

template <int M, int N>
struct Accumulator {
  float of[M][N][4] = {};   // element layout: ptx/mma.h
};
template <int M, int N>
struct Fragments {
  uint32_t of[M][N][4];     // A operands of N steps of 16
};

// The same in all lanes, and the compiler knows: what depends on it alone lives in uniform registers.
__device__ __forceinline__ int warp_index() { return __shfl_sync(all_lanes, static_cast<int>(threadIdx.x) / 32, 0); }

// Where a lane's address begins: in 16 rows x 16 columns read as an A operand, or transposed as a B operand; and as a B operand of 16 columns (rows of memory).
template <int D>
__device__ __forceinline__ int lane_of_rows(int lane) { return lane % 16 * tile_stride<D> + lane / 16 * 8; }
template <int D>
__device__ __forceinline__ int lane_of_columns(int lane) { return (lane / 16 * 8 + lane % 8) * tile_stride<D> + lane / 8 % 2 * 8; }

// Begins the copy of `Rows` rows of d elements into a tile, and into the `Tiles - 1` tiles after it the columns `apart`, 2 `apart`.. further on; zeros in
// rows from `valid` on and in columns from d on. Offsets of 32 bits from one pointer: this code's addresses take the registers that the products lack.
template <int Rows, int D, int Threads, int Tiles = 1>
__device__ __forceinline__ void copy_tile(bf16* to, const bf16* from, int ld, int valid, int d, int apart = 0) {
  // Threads of a group copy one row, a group every `step`th row; head dimensions that are no power of two leave threads idle.
  constexpr int units = D / 8, lanes = units <= 4 ? 4 : units <= 8 ? 8 : units <= 16 ? 16 : 32, step = Threads / lanes;
  static_assert(Rows % step == 0);
  const int r = static_cast<int>(threadIdx.x) / lanes, c = static_cast<int>(threadIdx.x) % lanes * 8;
  if (c >= D) return;
  unsigned offset = static_cast<unsigned>(r * ld + c);
  valid = c < d ? valid - r : 0;
  to += r * tile_stride<D> + c;
#pragma unroll
  for (int i = 0; i < Rows / step; ++i) {
    const bool inside = i * step < valid;   // outside, no byte of the address is read
#pragma unroll
    for (int t = 0; t < Tiles; ++t) ptx::copy_async_16(to + (t * Rows + i * step) * tile_stride<D>, from + offset + t * apart, inside);
    offset += static_cast<unsigned>(step * ld);
  }
}

// acc += rows . tile^T, both [.., D] in shared memory: the warp's 16 M rows, 8 N rows of the tile.
template <int D, int M, int N>
__device__ __forceinline__ void add_scores(Accumulator<M, N>& acc, const bf16* rows, const bf16* tile, int lane) {
  rows += lane_of_rows<D>(lane);
  tile += lane_of_columns<D>(lane);
#pragma unroll
  for (int k = 0; k < D / 16; ++k) {
    uint32_t a[M][4];
#pragma unroll
    for (int m = 0; m < M; ++m) ptx::load_matrix_x4(a[m], rows + m * 16 * tile_stride<D> + k * 16);
#pragma unroll
    for (int n = 0; n < N; n += 2) {
      uint32_t b[4];
      ptx::load_matrix_x4(b, tile + n * 8 * tile_stride<D> + k * 16);
#pragma unroll
      for (int m = 0; m < M; ++m) {
        ptx::mma_bf16(acc.of[m][n], a[m], {b[0], b[1]});
        ptx::mma_bf16(acc.of[m][n + 1], a[m], {b[2], b[3]});
      }
    }
  }
}
// The same with the rows already in registers.
template <int D, int M, int N>
__device__ __forceinline__ void add_scores(Accumulator<M, N>& acc, const Fragments<M, D / 16>& rows, const bf16* tile, int lane) {
  tile += lane_of_columns<D>(lane);
#pragma unroll
  for (int k = 0; k < D / 16; ++k) {
#pragma unroll
    for (int n = 0; n < N; n += 2) {
      uint32_t b[4];
      ptx::load_matrix_x4(b, tile + n * 8 * tile_stride<D> + k * 16);
#pragma unroll
      for (int m = 0; m < M; ++m) {
        ptx::mma_bf16(acc.of[m][n], rows.of[m][k], {b[0], b[1]});
        ptx::mma_bf16(acc.of[m][n + 1], rows.of[m][k], {b[2], b[3]});
      }
    }
  }
}
template <int D, int M>
__device__ __forceinline__ void load_rows(Fragments<M, D / 16>& out, const bf16* rows, int lane) {
  rows += lane_of_rows<D>(lane);
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int k = 0; k < D / 16; ++k) ptx::load_matrix_x4(out.of[m][k], rows + m * 16 * tile_stride<D> + k * 16);
  }
}

// acc += weights . tile: weights [16 M, 16 K], tile 16 K rows of D in shared memory.
template <int D, int M, int K>
__device__ __forceinline__ void add_weighted(Accumulator<M, D / 8>& acc, const Fragments<M, K>& weights, const bf16* tile, int lane) {
  tile += lane_of_rows<D>(lane);
#pragma unroll
  for (int k = 0; k < K; ++k) {
#pragma unroll
    for (int n = 0; n < D / 8; n += 2) {
      uint32_t b[4];
      ptx::load_matrix_x4_transposed(b, tile + k * 16 * tile_stride<D> + n * 8);
#pragma unroll
      for (int m = 0; m < M; ++m) {
        ptx::mma_bf16(acc.of[m][n], weights.of[m][k], {b[0], b[1]});
        ptx::mma_bf16(acc.of[m][n + 1], weights.of[m][k], {b[2], b[3]});
      }
    }
  }
}

// Results of one product, rounded, as the A operand of the next: both layouts give a lane the same elements.
template <int M, int N>
__device__ __forceinline__ void to_operand(Fragments<M, N / 2>& out, const Accumulator<M, N>& x) {
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int n = 0; n < N; ++n) {
      out.of[m][n / 2][n % 2 * 2] = ptx::pack_bf16(x.of[m][n][0], x.of[m][n][1]);
      out.of[m][n / 2][n % 2 * 2 + 1] = ptx::pack_bf16(x.of[m][n][2], x.of[m][n][3]);
    }
  }
}

// Writes factor[m][half] * acc, rounded, to the warp's rows: through its own rows `staging` in shared memory, so that a lane stores 16 bytes.
template <int D, int M>
__device__ __forceinline__ void store_rows(bf16* to, int64_t ld, int valid, int d, bf16* staging, const Accumulator<M, D / 8>& acc, const float (&factor)[M][2], int lane) {
  constexpr int units = D / 8;
  __syncwarp();
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      bf16* row = staging + (m * 16 + half * 8 + lane / 4) * tile_stride<D> + lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < units; ++n) {
        *reinterpret_cast<uint32_t*>(row + n * 8) = ptx::pack_bf16(acc.of[m][n][half * 2] * factor[m][half], acc.of[m][n][half * 2 + 1] * factor[m][half]);
      }
    }
  }
  __syncwarp();
  for (int i = lane; i < 16 * M * units; i += 32) {
    const int r = i / units, c = i % units * 8;
    if (r < valid && c < d) ptx::store_16(to + r * ld + c, *reinterpret_cast<const uint4*>(staging + r * tile_stride<D> + c));
  }
}

// A query tile's warp: which keys its rows may see. Document starts are read again for each tile (a hit of L1): registers are dearer.
struct QueryWarp {
  int first, last;               // query rows; last < first: none is inside the sample
  const int32_t* document;       // of the sample, or null

  __device__ __forceinline__ QueryWarp(int first_row, int rows, int seq_len, const int32_t* document_of_sample) : first(first_row), document(document_of_sample) {
    last = min(first + rows, seq_len) - 1;
  }
  // Whether some row sees some key of [k0, k0 + keys); whether some row does not see some key. Starts do not decrease along the rows.
  __device__ __forceinline__ bool sees(int k0, int keys) const { return last >= first && k0 <= last && (!document || k0 + keys > document[first]); }
  __device__ __forceinline__ bool needs_mask(int k0, int keys) const { return k0 + keys - 1 > first || (document && k0 < document[last]); }

  // Scores of keys that a row does not see become -Inf.
  template <int M, int N>
  __device__ __forceinline__ void mask(Accumulator<M, N>& scores, int k0, int lane) const {
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = first + m * 16 + half * 8 + lane / 4, from = document && row <= last ? document[row] : 0;
#pragma unroll
        for (int n = 0; n < N; ++n) {
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const int key = k0 + n * 8 + lane % 4 * 2 + e;
            if (key > row || key < from) scores.of[m][n][half * 2 + e] = minus_infinity;
          }
        }
      }
    }
  }
};

// Query tiles in the order of the walk: of one query head after the other.
struct Walk {
  int head, tile, first_tile, end_tile, end_head;
  __device__ __forceinline__ bool done() const { return head == end_head; }
  __device__ __forceinline__ void advance() {
    if (++tile < end_tile) return;
    tile = first_tile;
    ++head;
  }
};

// The first query whose document begins after `key`: it and later ones do not see the key.
__device__ __forceinline__ int first_query_beyond(const int32_t* document, int key, int seq_len) {
  int low = min(key, seq_len), high = seq_len;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (document[middle] > key) high = middle;
    else low = middle + 1;
  }
  return low;
}

// A warp's keys and which queries see them.
struct KeyWarp {
  int first, last;               // last < first: none is inside the sample
  int beyond_first;              // the first query that does not see the first key for its document, or a large number
  const int32_t* document;
  int seq_len;

  __device__ __forceinline__ KeyWarp(int first_key, int keys, int key_tile, int length, const int32_t* document_of_sample)
      : first(first_key), last(min(first_key + keys, length) - 1), beyond_first(length + key_tile), document(document_of_sample), seq_len(length) {
    if (document && last >= first) beyond_first = first_query_beyond(document, first, length);
  }
  __device__ __forceinline__ bool seen(int q0, int queries) const { return last >= first && q0 + queries > first; }
  __device__ __forceinline__ bool needs_mask(int q0, int queries) const { return q0 < last || q0 + queries > beyond_first; }
  template <int M, int N>
  __device__ __forceinline__ void mask(Accumulator<M, N>& scores, int q0, int lane) const {
#pragma unroll
    for (int n = 0; n < N; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int query = q0 + n * 8 + lane % 4 * 2 + e, from = document && query < seq_len ? document[query] : 0;
#pragma unroll
        for (int m = 0; m < M; ++m) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int key = first + m * 16 + half * 8 + lane / 4;
            if (key > query || key < from) scores.of[m][n][half * 2 + e] = minus_infinity;
          }
        }
      }
    }
  }
};

// Where the q, k, v columns of one head lie.
struct HeadPlace {
  int64_t row0;                  // first row of the sample in qkv
  int ld;                        // elements between its rows
  int sample, head, kv_head;
  int64_t query_column, key_column, value_column;
};
__device__ __forceinline__ HeadPlace head_place(const AttentionShape& s, int sample, int head, int kv_head) {
  const int64_t d = s.head_dim;
  return {static_cast<int64_t>(sample) * s.seq_len, (s.heads + 2 * s.kv_heads) * s.head_dim, sample, head, kv_head, head * d, (s.heads + kv_head) * d, (s.heads + s.kv_heads + kv_head) * d};
}
__device__ __forceinline__ const int32_t* documents_of(const AttentionShape& s, int sample) {
  return s.document_start ? s.document_start + static_cast<int64_t>(sample) * s.seq_len : nullptr;
}

// Calls f with the padded head_dim as a compile-time constant.
template <int N>
struct Padded {
  static constexpr int d = N;
};
template <class F>
auto with_padded_head_dim(int head_dim, const F& f) {
  if (head_dim <= 32) return f(Padded<32>{});
  if (head_dim <= 64) return f(Padded<64>{});
  if (head_dim <= 96) return f(Padded<96>{});
  if (head_dim <= 128) return f(Padded<128>{});
  if (head_dim <= 192) return f(Padded<192>{});
  return f(Padded<256>{});
}

}  // namespace octet::cuda
