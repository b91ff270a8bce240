// The tile family (quantize.h): one CTA of 256 threads holds a tile, eight rows of eight columns a thread. What it makes of it: kernels/quantize_tile.cuh.
#include "cuda/kernels/quantize.h"

#include <algorithm>

#include "cuda/kernels/adamw.cuh"
#include "cuda/kernels/quantize_tile.cuh"
#include "cuda/launch.h"

namespace octet::cuda {
namespace {

constexpr int threads = HeldTile::threads;

constexpr int most_parts = 2;
template <class Part, int Parts>
struct PerPart {
  Part of[Parts];
};

// The part is the fastest index of the grid: CTAs that read the same tile of the producer's input run beside each other and share it through L2.
template <int Parts>
__device__ __forceinline__ TilePlace tile_place(const SourceParams& s) {
  return {s.rows, s.cols, static_cast<int64_t>(blockIdx.y) * quantized_tile, static_cast<int64_t>(blockIdx.x / Parts) * quantized_tile, s.rows, s.cols};
}

// The place of the thread's first element.
struct Place {
  int64_t row, column;
};
__device__ __forceinline__ Place place_in(const TilePlace& tile) {
  const PiecePlace at = piece_place<threads>(0);
  return {tile.row + at.ry * 8, tile.column + at.cx * 8};
}

// The thread's elements of the tile, a row at a time: unrolled, the four forms of the state would not fit the instruction cache.
__device__ __forceinline__ void update_tile(const SourceParams& s, const Place& at) {
  const StepControl control = *s.adamw.control;
  if (control.skip) return;
  const AdamwParams& p = s.adamw;
#pragma unroll 1
  for (int i = 0; i < 8; ++i) {
    if (at.row + i >= s.rows || at.column >= s.cols) continue;
    const int64_t c = (at.row + i) * s.cols + at.column;
    if (p.narrow_moments) {
      p.remainder ? adamw_eight<true, bf16>(p, control.grad_scale, c) : adamw_eight<false, bf16>(p, control.grad_scale, c);
    } else {
      p.remainder ? adamw_eight<true, float>(p, control.grad_scale, c) : adamw_eight<false, float>(p, control.grad_scale, c);
    }
  }
}

template <SourceKind K>
__device__ __forceinline__ void load_tile(const SourceParams& s, const Place& at, uint4 (&v)[8]) {
  // A thread reads back the weights that it wrote itself, two bytes of the 18 and more that an update moves.
  if constexpr (K == SourceKind::adamw) update_tile(s, at);
  constexpr SourceKind read = K == SourceKind::adamw ? SourceKind::plain : K;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    v[i] = at.row + i < s.rows && at.column < s.cols ? source_eight<read>(s, at.row + i, at.column) : make_uint4(0, 0, 0, 0);
  }
}

template <SourceKind K, bool Row, bool Column>
__global__ void __launch_bounds__(threads) quantize_tile(const __grid_constant__ SourceParams source, const __grid_constant__ PerPart<TilePart, parts_of(K)> parts) {
  __shared__ TileShared<Column> shared;
  constexpr int P = parts_of(K);
  const SourceParams s = select_part(source, static_cast<int>(blockIdx.x % P));
  const TilePlace tile = tile_place<P>(s);
  const Place at = place_in(tile);
  HeldTile held;
  load_tile<K>(s, at, held.rows);
  if (s.value) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (at.row + i < s.rows && at.column < s.cols) ptx::store_16(static_cast<bf16*>(s.value) + (at.row + i) * s.value_ld + at.column, held.rows[i]);
    }
  }
  quantize_content<Row, Column>(parts.of[blockIdx.x % P], tile, held, shared);
}

// Maxima for scales of a whole tensor, of rows and of columns: bits of floats, raised by atomics (a maximum does not depend on their order).
struct AmaxOut {
  unsigned *tensor, *rows, *columns;   // null: not wanted
};

template <SourceKind K>
__global__ void __launch_bounds__(threads) amax_tile(const __grid_constant__ SourceParams source, const __grid_constant__ PerPart<AmaxOut, parts_of(K)> parts) {
  __shared__ uint32_t by_warp[threads / 32][quantized_tile / 2];
  constexpr int P = parts_of(K);
  const SourceParams s = select_part(source, static_cast<int>(blockIdx.x % P));
  const AmaxOut& out = parts.of[blockIdx.x % P];
  const TilePlace tile = tile_place<P>(s);
  const Place at = place_in(tile);
  HeldTile held;
  load_tile<K>(s, at, held.rows);
  if (out.tensor) {
    const uint32_t m = tile_magnitude(held);
    if (threadIdx.x == 0) atomicMax(out.tensor, __float_as_uint(amax_of(m)));
  }
  if (out.rows) {
    uint32_t m[8];
    row_magnitudes(held.rows, m);
    const int cx = piece_place<threads>(0).cx;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (cx == i && at.row + i < s.rows) atomicMax(out.rows + at.row + i, __float_as_uint(amax_of(m[i])));
    }
  }
  if (out.columns) {
    const uint32_t pair = column_magnitudes(held, by_warp);
    const int64_t c = tile.column + 2 * threadIdx.x;
    if (threadIdx.x < quantized_tile / 2 && c < s.cols) {   // columns come in eights
      atomicMax(out.columns + c, __float_as_uint(amax_of(pair & 0xFFFFu)));
      atomicMax(out.columns + c + 1, __float_as_uint(amax_of(pair >> 16)));
    }
  }
}

// multiplier[i] and scale_inv of `n` maxima, which may lie where the multipliers will; stored scales replace them.
__global__ void scales_from_maxima(ScaleParams scale, const float* amax, float* multiplier, float* scale_inv, int64_t n) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const Multiplier m = multiplier_of(scale, amax[i]);
  multiplier[i] = m.scale;
  scale_inv[i] = m.inverse;
}

// ---- host side

From origin(const ImageParams& image) {
  if (!image.codes) return From::nowhere;
  if (image.block_rows == 1 && image.block_cols == quantized_tile) return From::blocks_of_row;
  if (image.block_rows == quantized_tile && image.block_cols == quantized_tile) return From::tile;
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

dim3 tile_grid(const SourceParams& s) { return {blocks_for(s.cols, quantized_tile) * parts_of(s.kind), blocks_for(s.rows, quantized_tile)}; }

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
    case SourceKind::adamw: return body.template operator()<SourceKind::adamw>();
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
    if (!t->image.scale.stored && !t->image.amax && !place) place = t->stride == 0 && s.amax ? s.amax : reinterpret_cast<unsigned*>(maxima);
    maxima += n;
  }
  return part;
}

// Maxima become multipliers, in place where they were taken for this image. The column image first: a maximum of the tensor that serves both images lies where the row image's multiplier will.
void launch_scales(cudaStream_t stream, const SourceParams& s, const TilePart& part, const AmaxOut& taken) {
  for (const TileImage* t : {&part.column, &part.row}) {
    const int64_t n = maxima_of(t->image, s);
    if (n == 0) continue;
    const float* amax = t->image.amax;
    if (!amax) amax = t->stride == 0 && !t->image.scale.stored ? reinterpret_cast<const float*>(taken.tensor) : t->multiplier;
    launch("scales", stream, scales_from_maxima, dim3(blocks_for(n, threads)), dim3(threads), 0, t->image.scale, amax, t->multiplier, t->image.scale_inv, n);
  }
}

}  // namespace

bool tile_takes_maxima(const SourceParams& s) {
  if (s.wide || s.rows % 16 != 0 || s.cols % 16 != 0 || s.ld % 8 != 0 || s.value_ld % 8 != 0 || s.rows > int64_t{65535} * quantized_tile) return false;
  return aligned(s.x) && aligned(s.value) && aligned(s.gamma) && aligned(s.dy);
}

bool tile_serves(const SourceParams& s, std::span<const ImagePair> pairs) {
  if (!tile_takes_maxima(s) || static_cast<int>(pairs.size()) != parts_of(s.kind)) return false;
  return std::all_of(pairs.begin(), pairs.end(), [&](const ImagePair& p) {
    return pair_served(p) && !p.row.codes == !pairs[0].row.codes && !p.col.codes == !pairs[0].col.codes;
  });
}

Awaits scales_await(const ImagePair& pair) {
  Awaits most = Awaits::nothing;
  for (const ImageParams* image : {&pair.row, &pair.col}) {
    if (!image->codes || image->scale.stored || image->amax) continue;
    most = std::max(most, origin(*image) != From::memory ? Awaits::tile : image->block_rows == 0 ? Awaits::tensor : Awaits::lines);
  }
  return most;
}

int64_t tile_scratch_floats(const SourceParams& s, std::span<const ImagePair> pairs) {
  int64_t n = 0;
  for (const ImagePair& p : pairs) n += maxima_of(p, s);
  return n;
}

void launch_tile_maxima(cudaStream_t stream, const SourceParams& s, float* tensor, float* rows, float* columns) {
  PerPart<AmaxOut, most_parts> maxima{};
  maxima.of[0] = {reinterpret_cast<unsigned*>(tensor), reinterpret_cast<unsigned*>(rows), reinterpret_cast<unsigned*>(columns)};
  for (const auto& [place, n] : {std::pair{tensor, int64_t{1}}, {rows, s.rows}, {columns, s.cols}}) {
    if (place) check(cudaMemsetAsync(place, 0, static_cast<size_t>(n) * sizeof(float), stream), "clear maxima");
  }
  launch_amax<SourceKind::plain>(stream, s, maxima);
}

TilePart launch_tile_scales(cudaStream_t stream, const SourceParams& s, const ImagePair& pair, float* scratch) {
  AmaxOut none{};
  const TilePart part = tile_part(s, pair, scratch, none);
  launch_scales(stream, s, part, none);
  return part;
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
    needs_maxima |= (wanted.tensor && !s.amax) || wanted.rows || wanted.columns;
  }
  if (needs_maxima) {
    check(cudaMemsetAsync(scratch, 0, static_cast<size_t>(place - scratch) * sizeof(float), stream), "clear maxima");
    with_kind(s.kind, [&]<SourceKind K>() { launch_amax<K>(stream, s, maxima); });
  }
  for (size_t i = 0; i < pairs.size(); ++i) launch_scales(stream, s, parts.of[i], maxima.of[i]);
  // The first pass over a source of AdamW has updated the weights.
  const SourceKind now = needs_maxima && s.kind == SourceKind::adamw ? SourceKind::plain : s.kind;
  with_kind(now, [&]<SourceKind K>() { launch_tiles<K>(stream, s, parts); });
}

}  // namespace octet::cuda
