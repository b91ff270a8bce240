// What the tile family (quantize.h) does with a tile of 128 x 128 elements: in registers, of its own kernels, or in shared memory, of a producer that has such tiles
// in its hands. A thread works on pieces of eight rows of eight columns, packed BF16 pairs: of 256 threads each has one, of 128 two.
//
// Maxima are taken of the bits of magnitudes, which order like the numbers with Inf and NaN on top. The transposed image goes through shared memory in
// units of eight bytes (eight rows of one column), their place within the column's 128 bytes XORed by the column group, so that neither side has
// bank conflicts. Measured: docs/benchmarks/hopper.md.
#pragma once
#include "cuda/kernels/multiplier.cuh"
#include "cuda/kernels/quantize.h"
#include "cuda/kernels/reduce.cuh"
#include "cuda/kernels/source.cuh"

namespace octet::cuda {

constexpr int quantized_tile = 128;
constexpr uint32_t bf16_inf = 0x7F80, no_sign2 = 0x7FFF7FFF;

template <int Threads>
constexpr int pieces = 256 / Threads;

// Where a tile lies in the matrix whose images are written, and the ends of what exists of it. Its first element begins a tile of the matrix where scales are made
// in the tile.
struct TilePlace {
  int64_t rows, cols;   // of the matrix
  int64_t row, column, row_end, column_end;

  __device__ __forceinline__ int64_t block_row() const { return row / quantized_tile; }
  __device__ __forceinline__ int64_t block_column() const { return column / quantized_tile; }
};

// Which piece of the tile: its column and row in units of eight, and the warp that would have it if 256 threads had one each.
struct PiecePlace {
  int cx, ry, warp;
};
template <int Threads>
__device__ __forceinline__ PiecePlace piece_place(int piece) {
  const int t = static_cast<int>(threadIdx.x) + piece * Threads;
  return {t % 16, t / 16, t / 32};
}

// Tiles: piece() gives one of the thread's pieces, 0 where nothing exists. In registers:
struct HeldTile {
  static constexpr int threads = 256;
  uint4 rows[8];

  __device__ __forceinline__ void piece(int, uint4 (&v)[8]) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = rows[i];
  }
};
// In shared memory, read again for each use: a producer at the end of its registers has none to hold it. rows, columns: those that exist.
template <int Threads, int Stride>
struct StagedTile {
  static constexpr int threads = Threads;
  const bf16* first;
  int rows, columns;

  __device__ __forceinline__ void piece(int number, uint4 (&v)[8]) const {
    const PiecePlace at = piece_place<Threads>(number);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const bool exists = at.ry * 8 + i < rows && at.cx * 8 < columns;
      v[i] = exists ? *reinterpret_cast<const uint4*>(first + (at.ry * 8 + i) * Stride + at.cx * 8) : make_uint4(0, 0, 0, 0);
    }
  }
};

template <bool Column>
struct TileShared {
  __align__(16) uint8_t turned[Column ? quantized_tile * quantized_tile : 16];
  uint32_t by_warp[8][quantized_tile / 2];
  float column_scale[quantized_tile];
};

__device__ __forceinline__ uint32_t max2(uint32_t a, uint32_t b) { return ptx::max_u16x2(a, b); }
__device__ __forceinline__ uint32_t magnitude2(uint4 v, uint32_t m) {
  return max2(max2(v.x & no_sign2, v.y & no_sign2), max2(max2(v.z & no_sign2, v.w & no_sign2), m));
}
__device__ __forceinline__ uint32_t wider(uint32_t m) { return max(m & 0xFFFFu, m >> 16); }
__device__ __forceinline__ float amax_of(uint32_t bits16) { return __uint_as_float((bits16 > bf16_inf ? bf16_inf : bits16) << 16); }

__device__ __forceinline__ int nonfinite_in(uint32_t word) { return ((word & 0x7FFFu) >= bf16_inf) + ((word >> 16 & 0x7FFFu) >= bf16_inf); }

__device__ __forceinline__ uint32_t pack2(Dtype format, float low, float high) {
  return format == Dtype::e4m3 ? ptx::pack_e4m3(low, high) : ptx::pack_e5m2(low, high);
}
__device__ __forceinline__ uint2 encode8(Dtype format, uint4 v, float m) {
  const uint32_t a = pack2(format, low_bf16(v.x) * m, high_bf16(v.x) * m), b = pack2(format, low_bf16(v.y) * m, high_bf16(v.y) * m);
  const uint32_t c = pack2(format, low_bf16(v.z) * m, high_bf16(v.z) * m), d = pack2(format, low_bf16(v.w) * m, high_bf16(v.w) * m);
  return make_uint2(a | b << 16, c | d << 16);
}
// Column j of a piece's eight: rows 0..7.
__device__ __forceinline__ uint2 encode_column(Dtype format, const uint4 (&v)[8], int j, float m) {
  uint32_t w[4];
#pragma unroll
  for (int p = 0; p < 4; ++p) {
    const uint32_t a = j < 2 ? v[2 * p].x : j < 4 ? v[2 * p].y : j < 6 ? v[2 * p].z : v[2 * p].w;
    const uint32_t b = j < 2 ? v[2 * p + 1].x : j < 4 ? v[2 * p + 1].y : j < 6 ? v[2 * p + 1].z : v[2 * p + 1].w;
    w[p] = j % 2 ? pack2(format, high_bf16(a) * m, high_bf16(b) * m) : pack2(format, low_bf16(a) * m, low_bf16(b) * m);
  }
  return make_uint2(w[0] | w[1] << 16, w[2] | w[3] << 16);
}

// Largest magnitude of each of a piece's rows over the tile's 128 columns, as 16 bits; every lane of the row gets it.
__device__ __forceinline__ void row_magnitudes(const uint4 (&v)[8], uint32_t (&m)[8]) {
#pragma unroll
  for (int p = 0; p < 4; ++p) {
    uint32_t both = wider(magnitude2(v[2 * p], 0)) | wider(magnitude2(v[2 * p + 1], 0)) << 16;
#pragma unroll
    for (int o = 8; o; o >>= 1) both = max2(both, __shfl_xor_sync(all_lanes, both, o));
    m[2 * p] = both & 0xFFFFu;
    m[2 * p + 1] = both >> 16;
  }
}

// Largest magnitude of each column of the tile, into shared memory by all threads; the first 64 get those of a pair of columns each.
template <class Tile>
__device__ __forceinline__ uint32_t column_magnitudes(const Tile& content, uint32_t (*by_warp)[quantized_tile / 2]) {
#pragma unroll 1
  for (int piece = 0; piece < pieces<Tile::threads>; ++piece) {
    const PiecePlace at = piece_place<Tile::threads>(piece);
    uint4 v[8];
    content.piece(piece, v);
    uint32_t m[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      m[0] = max2(m[0], v[i].x & no_sign2), m[1] = max2(m[1], v[i].y & no_sign2);
      m[2] = max2(m[2], v[i].z & no_sign2), m[3] = max2(m[3], v[i].w & no_sign2);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) m[j] = max2(m[j], __shfl_xor_sync(all_lanes, m[j], 16));
    if (threadIdx.x % 32 < 16) {
#pragma unroll
      for (int j = 0; j < 4; ++j) by_warp[at.warp][at.cx * 4 + j] = m[j];
    }
  }
  __syncthreads();
  uint32_t total = 0;
  if (threadIdx.x < quantized_tile / 2) {
    total = by_warp[0][threadIdx.x];
    for (int w = 1; w < 8; ++w) total = max2(total, by_warp[w][threadIdx.x]);
  }
  return total;
}

template <class Tile>
__device__ __forceinline__ uint32_t tile_magnitude(const Tile& content) {
  uint32_t m = 0;
#pragma unroll 1
  for (int piece = 0; piece < pieces<Tile::threads>; ++piece) {
    uint4 v[8];
    content.piece(piece, v);
#pragma unroll
    for (int i = 0; i < 8; ++i) m = magnitude2(v[i], m);
  }
  return block_max<Tile::threads>(wider(m));
}

// The tensor's amax and count of non-finite elements; `m` is the tile's largest magnitude.
template <class Tile>
__device__ __forceinline__ void note_statistics(const StatisticsParams& s, uint32_t m, const Tile& content) {
  if (s.amax && threadIdx.x == 0) atomicMax(reinterpret_cast<unsigned*>(s.amax), __float_as_uint(amax_of(m)));
  if (m < bf16_inf || !s.nonfinite) return;
  int n = 0;
#pragma unroll 1
  for (int piece = 0; piece < pieces<Tile::threads>; ++piece) {
    uint4 v[8];
    content.piece(piece, v);
#pragma unroll
    for (int i = 0; i < 8; ++i) n += nonfinite_in(v[i].x) + nonfinite_in(v[i].y) + nonfinite_in(v[i].z) + nonfinite_in(v[i].w);
  }
  if (n) atomicAdd(reinterpret_cast<unsigned long long*>(s.nonfinite), static_cast<unsigned long long>(n));
}

// The row image's multipliers of a piece's eight rows, the first of which is `row`; scales made here are written.
__device__ __forceinline__ void row_multipliers(const TileImage& t, const TilePlace& tile, int64_t row, int cx, const uint4 (&v)[8], float tile_amax, float (&out)[8]) {
  const ImageParams& image = t.image;
  if (t.from == From::memory) {
#pragma unroll
    for (int i = 0; i < 8; ++i) out[i] = row + i < tile.row_end ? t.multiplier[(row + i) * t.stride] : 0.0f;
  } else if (t.from == From::tile) {
    const Multiplier m = multiplier_of(image.scale, tile_amax);
#pragma unroll
    for (int i = 0; i < 8; ++i) out[i] = m.scale;
    if (threadIdx.x == 0) image.scale_inv[tile.block_row() * image.scale_row_stride + tile.block_column() * image.scale_col_stride] = m.inverse;
  } else {
    uint32_t magnitude[8];
    row_magnitudes(v, magnitude);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const Multiplier m = multiplier_of(image.scale, amax_of(magnitude[i]));
      out[i] = m.scale;
      if (cx == i && row + i < tile.row_end) image.scale_inv[(row + i) * image.scale_row_stride + tile.block_column() * image.scale_col_stride] = m.inverse;
    }
  }
}

template <class Tile>
__device__ __forceinline__ void write_row_image(const TileImage& t, const TilePlace& tile, const Tile& content, float tile_amax) {
#pragma unroll 1
  for (int piece = 0; piece < pieces<Tile::threads>; ++piece) {
    const PiecePlace at = piece_place<Tile::threads>(piece);
    uint4 v[8];
    content.piece(piece, v);
    const int64_t row = tile.row + at.ry * 8, column = tile.column + at.cx * 8;
    float scale[8];
    row_multipliers(t, tile, row, at.cx, v, tile_amax, scale);
    uint8_t* q = t.image.codes + row * tile.cols + column;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (row + i < tile.row_end && column < tile.column_end) ptx::store_8(q + i * tile.cols, encode8(t.image.scale.format, v[i], scale[i]));
    }
  }
}

// The transposed image's multipliers of the tile's 128 columns, into shared memory. Ends with a barrier.
template <class Tile>
__device__ __forceinline__ void column_multipliers(const TileImage& t, const TilePlace& tile, const Tile& content, float tile_amax, float* out,
                                                   uint32_t (*by_warp)[quantized_tile / 2]) {
  const ImageParams& image = t.image;
  const int i = static_cast<int>(threadIdx.x);
  if (t.from == From::memory) {
    if (i < quantized_tile) out[i] = tile.column + i < tile.column_end ? t.multiplier[(tile.column + i) * t.stride] : 0.0f;
  } else if (t.from == From::tile) {
    const Multiplier m = multiplier_of(image.scale, tile_amax);
    if (i < quantized_tile) out[i] = m.scale;
    if (i == 0) image.scale_inv[tile.block_column() * image.scale_row_stride + tile.block_row() * image.scale_col_stride] = m.inverse;
  } else {
    const uint32_t pair = column_magnitudes(content, by_warp);
    if (i < quantized_tile / 2) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Multiplier m = multiplier_of(image.scale, amax_of(half ? pair >> 16 : pair & 0xFFFFu));
        const int c = 2 * i + half;
        out[c] = m.scale;
        if (tile.column + c < tile.column_end) image.scale_inv[(tile.column + c) * image.scale_row_stride + tile.block_row() * image.scale_col_stride] = m.inverse;
      }
    }
  }
  __syncthreads();
}

// Rows come in sixteens.
template <class Tile>
__device__ __forceinline__ void write_column_image(const TileImage& t, const TilePlace& tile, const Tile& content, float tile_amax, TileShared<true>& shared) {
  column_multipliers(t, tile, content, tile_amax, shared.column_scale, shared.by_warp);
#pragma unroll 1
  for (int piece = 0; piece < pieces<Tile::threads>; ++piece) {
    const PiecePlace at = piece_place<Tile::threads>(piece);
    uint4 v[8];
    content.piece(piece, v);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const uint2 unit = encode_column(t.image.scale.format, v, j, shared.column_scale[at.cx * 8 + j]);
      *reinterpret_cast<uint2*>(&shared.turned[(at.cx * 8 + j) * quantized_tile + ((at.ry ^ at.cx) << 3)]) = unit;
    }
  }
  __syncthreads();
#pragma unroll 4
  for (int pass = 0; pass < quantized_tile * 8 / Tile::threads; ++pass) {
    const int c = pass * (Tile::threads / 8) + static_cast<int>(threadIdx.x) / 8, u = static_cast<int>(threadIdx.x) % 8, group = c / 8;
    uint4 x = *reinterpret_cast<const uint4*>(&shared.turned[c * quantized_tile + ((u ^ (group >> 1)) << 4)]);
    if (group & 1) x = make_uint4(x.z, x.w, x.x, x.y);
    if (tile.column + c < tile.column_end && tile.row + u * 16 < tile.row_end) ptx::store_16(t.image.codes + (tile.column + c) * tile.rows + tile.row + u * 16, x);
  }
}

// The wanted ones of Row and Column images, and the statistics. Called by all threads.
template <bool Row, bool Column, class Tile>
__device__ __forceinline__ void quantize_content(const TilePart& part, const TilePlace& tile, const Tile& content, TileShared<Column>& shared) {
  const auto& [row, column, statistics] = part;
  const bool needs_tile_amax = row.from == From::tile || column.from == From::tile || statistics.amax || statistics.nonfinite;
  const uint32_t magnitude = needs_tile_amax ? tile_magnitude(content) : 0;
  note_statistics(statistics, magnitude, content);
  if constexpr (Row) {
    if (row.from != From::nowhere) write_row_image(row, tile, content, amax_of(magnitude));
  }
  if constexpr (Column) {
    if (column.from != From::nowhere) write_column_image(column, tile, content, amax_of(magnitude), shared);
  }
}

}  // namespace octet::cuda
