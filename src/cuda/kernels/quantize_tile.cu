// The tile family (quantize.h): one CTA of 256 threads holds 128 x 128 elements as packed BF16 pairs, eight rows of eight columns a thread.
//
// Maxima are taken of the bits of magnitudes, which order like the numbers with Inf and NaN on top. The transposed image goes through shared memory in
// units of eight bytes (eight rows of one column), their place within the column's 128 bytes XORed by the column group, so that neither side has
// bank conflicts. Measured: docs/benchmarks/hopper.md.
#include "cuda/kernels/quantize.h"

#include <algorithm>

#include "cuda/kernels/multiplier.cuh"
#include "cuda/kernels/reduce.cuh"
#include "cuda/kernels/source.cuh"
#include "cuda/launch.h"

namespace octet::cuda {
namespace {

constexpr int tile = 128, threads = 256;
constexpr uint32_t bf16_inf = 0x7F80, no_sign2 = 0x7FFF7FFF;

// Where a multiplier of an image comes from.
enum class From : int { nowhere, memory, blocks_of_row, tile };

struct TileImage {
  ImageParams image;
  From from = From::nowhere;
  float* multiplier = nullptr;   // memory: one for the matrix (stride 0), a row or a column of the source (stride 1)
  int stride = 0;
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
// Column j of the thread's eight: rows 0..7.
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

// What a launch makes of each part of its source.
struct TilePart {
  TileImage row, column;
  StatisticsParams statistics;
};
constexpr int most_parts = 2;
template <class Part, int Parts>
struct PerPart {
  Part of[Parts];
};

struct Place {
  int64_t tile_row, tile_column;   // of the CTA's tile
  int64_t row, column;             // of the thread's first element
  int cx, ry, lane, warp;
};
// The part is the fastest index of the grid: CTAs that read the same tile of the producer's input run beside each other and share it through L2.
template <int Parts>
__device__ __forceinline__ Place place() {
  const int t = static_cast<int>(threadIdx.x), cx = t % 16, ry = t / 16;
  const int64_t tile_row = blockIdx.y, tile_column = blockIdx.x / Parts;
  return {tile_row, tile_column, tile_row * tile + ry * 8, tile_column * tile + cx * 8, cx, ry, t % 32, t / 32};
}

template <SourceKind K>
__device__ __forceinline__ void load_tile(const SourceParams& s, const Place& at, uint4 (&v)[8]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    v[i] = at.row + i < s.rows && at.column < s.cols ? source_eight<K>(s, at.row + i, at.column) : make_uint4(0, 0, 0, 0);
  }
}

// Largest magnitude of each of the thread's rows over the tile's 128 columns, as 16 bits; every lane of the row gets it.
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

// Largest magnitude of each column of the tile, into shared memory by all threads of the first 64; pairs of columns.
__device__ __forceinline__ uint32_t column_magnitudes(const uint4 (&v)[8], const Place& at, uint32_t (*by_warp)[64]) {
  uint32_t m[4] = {0, 0, 0, 0};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    m[0] = max2(m[0], v[i].x & no_sign2), m[1] = max2(m[1], v[i].y & no_sign2);
    m[2] = max2(m[2], v[i].z & no_sign2), m[3] = max2(m[3], v[i].w & no_sign2);
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) m[j] = max2(m[j], __shfl_xor_sync(all_lanes, m[j], 16));
  if (at.lane < 16) {
#pragma unroll
    for (int j = 0; j < 4; ++j) by_warp[at.warp][at.cx * 4 + j] = m[j];
  }
  __syncthreads();
  uint32_t total = 0;
  if (threadIdx.x < 64) {
    total = by_warp[0][threadIdx.x];
    for (int w = 1; w < threads / 32; ++w) total = max2(total, by_warp[w][threadIdx.x]);
  }
  return total;
}

__device__ __forceinline__ uint32_t tile_magnitude(const uint4 (&v)[8]) {
  uint32_t m = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) m = magnitude2(v[i], m);
  return block_max<threads>(wider(m));
}

// The tensor's amax and count of non-finite elements; `m` is the tile's largest magnitude.
__device__ __forceinline__ void note_statistics(const StatisticsParams& s, uint32_t m, const uint4 (&v)[8]) {
  if (s.amax && threadIdx.x == 0) atomicMax(reinterpret_cast<unsigned*>(s.amax), __float_as_uint(amax_of(m)));
  if (m < bf16_inf || !s.nonfinite) return;
  int n = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) n += nonfinite_in(v[i].x) + nonfinite_in(v[i].y) + nonfinite_in(v[i].z) + nonfinite_in(v[i].w);
  if (n) atomicAdd(reinterpret_cast<unsigned long long*>(s.nonfinite), static_cast<unsigned long long>(n));
}

// The row image's multipliers of the thread's eight rows; scales made here are written.
__device__ __forceinline__ void row_multipliers(const TileImage& t, const SourceParams& s, const Place& at, const uint4 (&v)[8], float tile_amax, float (&out)[8]) {
  const ImageParams& image = t.image;
  if (t.from == From::memory) {
#pragma unroll
    for (int i = 0; i < 8; ++i) out[i] = at.row + i < s.rows ? t.multiplier[(at.row + i) * t.stride] : 0.0f;
  } else if (t.from == From::tile) {
    const Multiplier m = multiplier_of(image.scale, tile_amax);
#pragma unroll
    for (int i = 0; i < 8; ++i) out[i] = m.scale;
    if (threadIdx.x == 0) image.scale_inv[at.tile_row * image.scale_row_stride + at.tile_column * image.scale_col_stride] = m.inverse;
  } else {
    uint32_t magnitude[8];
    row_magnitudes(v, magnitude);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const Multiplier m = multiplier_of(image.scale, amax_of(magnitude[i]));
      out[i] = m.scale;
      if (at.cx == i && at.row + i < s.rows) image.scale_inv[(at.row + i) * image.scale_row_stride + at.tile_column * image.scale_col_stride] = m.inverse;
    }
  }
}

// The transposed image's multipliers of the tile's 128 columns, into shared memory. Ends with a barrier.
__device__ __forceinline__ void column_multipliers(const TileImage& t, const SourceParams& s, const Place& at, const uint4 (&v)[8], float tile_amax, float* out,
                                                   uint32_t (*by_warp)[64]) {
  const ImageParams& image = t.image;
  const int64_t first = at.tile_column * tile;
  const int i = static_cast<int>(threadIdx.x);
  if (t.from == From::memory) {
    if (i < tile) out[i] = first + i < s.cols ? t.multiplier[(first + i) * t.stride] : 0.0f;
  } else if (t.from == From::tile) {
    const Multiplier m = multiplier_of(image.scale, tile_amax);
    if (i < tile) out[i] = m.scale;
    if (i == 0) image.scale_inv[at.tile_column * image.scale_row_stride + at.tile_row * image.scale_col_stride] = m.inverse;
  } else {
    const uint32_t pair = column_magnitudes(v, at, by_warp);
    if (i < tile / 2) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Multiplier m = multiplier_of(image.scale, amax_of(half ? pair >> 16 : pair & 0xFFFFu));
        const int c = 2 * i + half;
        out[c] = m.scale;
        if (first + c < s.cols) image.scale_inv[(first + c) * image.scale_row_stride + at.tile_row * image.scale_col_stride] = m.inverse;
      }
    }
  }
  __syncthreads();
}

template <SourceKind K, bool Row, bool Column>
__global__ void __launch_bounds__(threads) quantize_tile(const __grid_constant__ SourceParams source, const __grid_constant__ PerPart<TilePart, parts_of(K)> parts) {
  __shared__ __align__(16) uint8_t turned[Column ? tile * tile : 16];
  __shared__ uint32_t by_warp[threads / 32][64];
  __shared__ float column_scale[tile];
  constexpr int P = parts_of(K);
  const SourceParams s = select_part(source, static_cast<int>(blockIdx.x % P));
  const auto& [row, column, statistics] = parts.of[blockIdx.x % P];
  const Place at = place<P>();
  uint4 v[8];
  load_tile<K>(s, at, v);
  if (s.value) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (at.row + i < s.rows && at.column < s.cols) ptx::store_16(static_cast<bf16*>(s.value) + (at.row + i) * s.value_ld + at.column, v[i]);
    }
  }
  const bool needs_tile_amax = row.from == From::tile || column.from == From::tile || statistics.amax || statistics.nonfinite;
  const uint32_t magnitude = needs_tile_amax ? tile_magnitude(v) : 0;
  note_statistics(statistics, magnitude, v);

  if constexpr (Row) {
    float scale[8];
    row_multipliers(row, s, at, v, amax_of(magnitude), scale);
    uint8_t* q = row.image.codes + at.row * s.cols + at.column;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (at.row + i < s.rows && at.column < s.cols) ptx::store_8(q + i * s.cols, encode8(row.image.scale.format, v[i], scale[i]));
    }
  }
  if constexpr (Column) {
    column_multipliers(column, s, at, v, amax_of(magnitude), column_scale, by_warp);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const uint2 unit = encode_column(column.image.scale.format, v, j, column_scale[at.cx * 8 + j]);
      *reinterpret_cast<uint2*>(&turned[(at.cx * 8 + j) * tile + ((at.ry ^ at.cx) << 3)]) = unit;
    }
    __syncthreads();
    const int64_t first_column = at.tile_column * tile, first_row = at.tile_row * tile;
#pragma unroll
    for (int pass = 0; pass < 4; ++pass) {
      const int c = pass * 32 + static_cast<int>(threadIdx.x) / 8, u = static_cast<int>(threadIdx.x) % 8, group = c / 8;
      uint4 x = *reinterpret_cast<const uint4*>(&turned[c * tile + ((u ^ (group >> 1)) << 4)]);
      if (group & 1) x = make_uint4(x.z, x.w, x.x, x.y);
      if (first_column + c < s.cols && first_row + u * 16 < s.rows) ptx::store_16(column.image.codes + (first_column + c) * s.rows + first_row + u * 16, x);
    }
  }
}

// Maxima for scales of a whole tensor, of rows and of columns: bits of floats, raised by atomics (a maximum does not depend on their order).
struct AmaxOut {
  unsigned *tensor, *rows, *columns;   // null: not wanted
};

template <SourceKind K>
__global__ void __launch_bounds__(threads) amax_tile(const __grid_constant__ SourceParams source, const __grid_constant__ PerPart<AmaxOut, parts_of(K)> parts) {
  __shared__ uint32_t by_warp[threads / 32][64];
  constexpr int P = parts_of(K);
  const SourceParams s = select_part(source, static_cast<int>(blockIdx.x % P));
  const AmaxOut& out = parts.of[blockIdx.x % P];
  const Place at = place<P>();
  uint4 v[8];
  load_tile<K>(s, at, v);
  if (out.tensor) {
    const uint32_t m = tile_magnitude(v);
    if (threadIdx.x == 0) atomicMax(out.tensor, __float_as_uint(amax_of(m)));
  }
  if (out.rows) {
    uint32_t m[8];
    row_magnitudes(v, m);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (at.cx == i && at.row + i < s.rows) atomicMax(out.rows + at.row + i, __float_as_uint(amax_of(m[i])));
    }
  }
  if (out.columns) {
    const uint32_t pair = column_magnitudes(v, at, by_warp);
    const int64_t c = at.tile_column * tile + 2 * threadIdx.x;
    if (threadIdx.x < tile / 2 && c < s.cols) {   // columns come in eights
      atomicMax(out.columns + c, __float_as_uint(amax_of(pair & 0xFFFFu)));
      atomicMax(out.columns + c + 1, __float_as_uint(amax_of(pair >> 16)));
    }
  }
}

// multiplier[i] and scale_inv of `n` maxima; stored scales replace them.
__global__ void scales_from_maxima(ScaleParams scale, float* amax_to_multiplier, float* scale_inv, int64_t n) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const Multiplier m = multiplier_of(scale, amax_to_multiplier[i]);
  amax_to_multiplier[i] = m.scale;
  scale_inv[i] = m.inverse;
}

// ---- host side

From origin(const ImageParams& image) {
  if (!image.codes) return From::nowhere;
  if (image.block_rows == 1 && image.block_cols == tile) return From::blocks_of_row;
  if (image.block_rows == tile && image.block_cols == tile) return From::tile;
  return From::memory;
}

// Maxima that an image needs made beforehand: one, or one for each of its stored rows.
int64_t maxima_of(const ImageParams& image, const SourceParams& s) {
  if (origin(image) != From::memory) return 0;
  return image.block_rows == 0 ? 1 : image.transposed ? s.cols : s.rows;
}

bool image_served(const ImageParams& image) {
  if (!image.codes) return true;
  if (image.stochastic || image.hadamard || image.scale.rule == ScaleRule::two_level) return false;
  if (image.scale.format != Dtype::e4m3 && image.scale.format != Dtype::e5m2) return false;
  const bool whole = image.block_rows == 0 && image.block_cols == 0, by_row = image.block_rows == 1 && image.block_cols == 0;
  if (image.scale.stored) return whole;
  return whole || by_row || origin(image) != From::memory;
}

bool aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

dim3 tile_grid(const SourceParams& s) { return {blocks_for(s.cols, tile) * parts_of(s.kind), blocks_for(s.rows, tile)}; }

template <class Part, int Parts>
PerPart<Part, Parts> first_parts(const PerPart<Part, most_parts>& all) {
  PerPart<Part, Parts> out;
  std::copy_n(all.of, Parts, out.of);
  return out;
}

template <SourceKind K>
void launch_tiles(cudaStream_t stream, const SourceParams& s, const PerPart<TilePart, most_parts>& parts) {
  const bool r = parts.of[0].row.from != From::nowhere, c = parts.of[0].column.from != From::nowhere;
  auto* kernel = r && c ? quantize_tile<K, true, true> : r ? quantize_tile<K, true, false> : quantize_tile<K, false, true>;
  launch("quantize tiles", stream, kernel, tile_grid(s), threads, 0, s, first_parts<TilePart, parts_of(K)>(parts));
}

template <SourceKind K>
void launch_amax(cudaStream_t stream, const SourceParams& s, const PerPart<AmaxOut, most_parts>& parts) {
  launch("maxima of tiles", stream, amax_tile<K>, tile_grid(s), threads, 0, s, first_parts<AmaxOut, parts_of(K)>(parts));
}

template <class Body>
void with_kind(SourceKind kind, const Body& body) {
  switch (kind) {
    case SourceKind::plain: return body.template operator()<SourceKind::plain>();
    case SourceKind::norm: return body.template operator()<SourceKind::norm>();
    case SourceKind::swiglu: return body.template operator()<SourceKind::swiglu>();
    case SourceKind::swiglu_grad: return body.template operator()<SourceKind::swiglu_grad>();
  }
}

bool pair_served(const ImagePair& p) {
  if (p.statistics.row_health || p.statistics.col_health || !(p.row.codes || p.col.codes)) return false;
  if (p.row.transposed || (p.col.codes && !p.col.transposed) || !image_served(p.row) || !image_served(p.col)) return false;
  return aligned(p.row.codes) && aligned(p.col.codes);
}

int64_t maxima_of(const ImagePair& p, const SourceParams& s) { return maxima_of(p.row, s) + maxima_of(p.col, s); }

// One part's images, with places in `maxima` for maxima and multipliers that are made beforehand; says which maxima are to be taken of the source.
TilePart tile_part(const SourceParams& s, const ImagePair& pair, float* maxima, AmaxOut& wanted) {
  TilePart part{{pair.row, origin(pair.row), nullptr, 0}, {pair.col, origin(pair.col), nullptr, 0}, pair.statistics};
  for (TileImage* t : {&part.row, &part.column}) {
    const int64_t n = maxima_of(t->image, s);
    if (n == 0) continue;
    t->multiplier = maxima;
    t->stride = t->image.block_rows == 0 ? 0 : 1;
    auto*& place = t->stride == 0 ? wanted.tensor : t == &part.row ? wanted.rows : wanted.columns;
    if (!t->image.scale.stored && !place) place = reinterpret_cast<unsigned*>(maxima);
    maxima += n;
  }
  return part;
}

// Maxima become multipliers in place. The column image first: a maximum of the tensor that serves both images lies where the row image's multiplier will.
void launch_scales(cudaStream_t stream, const SourceParams& s, const TilePart& part, const AmaxOut& taken) {
  for (const TileImage* t : {&part.column, &part.row}) {
    const int64_t n = maxima_of(t->image, s);
    if (n == 0) continue;
    const void* tensor = taken.tensor;
    if (t->stride == 0 && !t->image.scale.stored && tensor != t->multiplier) {
      check(cudaMemcpyAsync(t->multiplier, tensor, sizeof(float), cudaMemcpyDeviceToDevice, stream), "copy the tensor's maximum");
    }
    launch("scales", stream, scales_from_maxima, dim3(blocks_for(n, threads)), dim3(threads), 0, t->image.scale, t->multiplier, t->image.scale_inv, n);
  }
}

}  // namespace

bool tile_serves(const SourceParams& s, std::span<const ImagePair> pairs) {
  if (s.wide || static_cast<int>(pairs.size()) != parts_of(s.kind)) return false;
  if (s.rows % 16 != 0 || s.cols % 16 != 0 || s.ld % 8 != 0 || s.value_ld % 8 != 0 || s.rows > int64_t{65535} * tile) return false;
  if (!aligned(s.x) || !aligned(s.value) || !aligned(s.gamma) || !aligned(s.dy)) return false;
  return std::all_of(pairs.begin(), pairs.end(), [&](const ImagePair& p) {
    return pair_served(p) && !p.row.codes == !pairs[0].row.codes && !p.col.codes == !pairs[0].col.codes;
  });
}

int64_t tile_scratch_floats(const SourceParams& s, std::span<const ImagePair> pairs) {
  int64_t n = 0;
  for (const ImagePair& p : pairs) n += maxima_of(p, s);
  return n;
}

void launch_quantize_tiles(cudaStream_t stream, const SourceParams& s, std::span<const ImagePair> pairs, float* scratch) {
  PerPart<TilePart, most_parts> parts{};
  PerPart<AmaxOut, most_parts> maxima{};
  bool needs_maxima = false;
  float* place = scratch;
  for (size_t i = 0; i < pairs.size(); ++i) {
    AmaxOut& wanted = maxima.of[i];
    parts.of[i] = tile_part(s, pairs[i], place, wanted);
    place += maxima_of(pairs[i], s);
    needs_maxima |= wanted.tensor || wanted.rows || wanted.columns;
  }
  if (needs_maxima) {
    check(cudaMemsetAsync(scratch, 0, static_cast<size_t>(place - scratch) * sizeof(float), stream), "clear maxima");
    with_kind(s.kind, [&]<SourceKind K>() { launch_amax<K>(stream, s, maxima); });
  }
  for (size_t i = 0; i < pairs.size(); ++i) launch_scales(stream, s, parts.of[i], maxima.of[i]);
  with_kind(s.kind, [&]<SourceKind K>() { launch_tiles<K>(stream, s, parts); });
}

}  // namespace octet::cuda
