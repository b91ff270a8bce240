#include "ops/reduce.h"

#include <algorithm>
#include <cstring>

#include "cpu/cpu_ops.h"
#include "cpu/scratch.h"
#include "cpu/simd.h"
#include "cpu/tiles.h"

namespace octet::cpu {
namespace {

constexpr int64_t tile = 1 << 14;

// Four double lanes: enough to hide the latency, and a fixed order.
template <class F>
double sum_of_tile(const float* p, int64_t begin, int64_t end, const F& term) {
  double lane[4] = {0, 0, 0, 0};
  int64_t i = begin;
  for (; i + 4 <= end; i += 4) {
    for (int l = 0; l < 4; ++l) lane[l] += term(p[i + l]);
  }
  for (; i < end; ++i) lane[0] += term(p[i]);
  return (lane[0] + lane[2]) + (lane[1] + lane[3]);
}

template <class F>
void tiled_sums(Ctx& ctx, std::span<const Tensor> x, double* sums, const F& term) {
  Arena::Scope scope(ctx.scratch());
  const TileSequence tiles(ctx, x.size(), tile, [&](size_t i) { return x[i].elements(); });
  double* partial = ctx.scratch().alloc_array<double>(tiles.tiles());
  if (ctx.planning()) return;
  tiles.run(ctx.pool(), [&](size_t i, int64_t begin, int64_t number) {
    partial[number] = sum_of_tile(x[i].as<float>(), begin, std::min(begin + tile, x[i].elements()), term);
  });
  for (size_t i = 0; i < x.size(); ++i) {
    double total = 0;
    for (int64_t t = tiles.first(i); t < tiles.first(i + 1); ++t) total += partial[t];
    sums[i] += total;
  }
}

}  // namespace

void sum(Ctx& ctx, const Tensor& x, double* total) {
  tiled_sums(ctx, {&x, 1}, total, [](float v) { return static_cast<double>(v); });
}

void sum_squares(Ctx& ctx, std::span<const Tensor> x, double* totals) {
  tiled_sums(ctx, x, totals, [](float v) { return static_cast<double>(v) * static_cast<double>(v); });
}

void column_sums(Ctx& ctx, const MatrixView& dy, const Tensor& d_bias) {
  constexpr int64_t column_tile = 64;
  Arena::Scope scope(ctx.scratch());
  const WorkerScratch scratch(ctx, 2 * column_tile);
  if (ctx.planning()) return;
  parallel_tiles(ctx.pool(), dy.cols, column_tile, [&](int64_t c0, int64_t c1, int worker) {
    const MatrixView columns = dy.columns(c0, c1 - c0);
    float *tmp = scratch.of(worker), *total = tmp + column_tile;
    std::fill(total, total + column_tile, 0.0f);
    for (int64_t r = 0; r < dy.rows; ++r) {
      const float* x = read_row(columns, r, tmp);
      for (int64_t i = 0; i < c1 - c0; ++i) total[i] += x[i];
    }
    for (int64_t i = 0; i < c1 - c0; ++i) d_bias.as<float>()[c0 + i] += total[i];
  });
}

void zero(Ctx& ctx, const Tensor& x) {
  if (ctx.planning()) return;
  parallel_tiles(ctx.pool(), static_cast<int64_t>(x.bytes()), 1 << 20, [&](int64_t begin, int64_t end, int) {
    memset(static_cast<char*>(x.data) + begin, 0, static_cast<size_t>(end - begin));
  });
}

void copy(Ctx& ctx, const Tensor& from, const Tensor& to) {
  if (ctx.planning()) return;
  parallel_tiles(ctx.pool(), static_cast<int64_t>(from.bytes()), 1 << 20, [&](int64_t begin, int64_t end, int) {
    memcpy(static_cast<char*>(to.data) + begin, static_cast<const char*>(from.data) + begin, static_cast<size_t>(end - begin));
  });
}

void add(Ctx& ctx, const Tensor& from, const Tensor& to) {
  if (ctx.planning()) return;
  parallel_tiles(ctx.pool(), from.elements(), 1 << 18, [&](int64_t begin, int64_t end, int) {
    const float* x = from.as<float>();
    float* y = to.as<float>();
    for (int64_t i = begin; i < end; ++i) y[i] += x[i];
  });
}

namespace {

template <class T>
void transpose_of(Ctx& ctx, const MatrixView& from, const MatrixView& to) {
  constexpr int64_t side = 64;   // of a square that stays in the first cache
  parallel_tiles(ctx.pool(), to.rows, side, [&](int64_t c0, int64_t c1, int) {
    for (int64_t r0 = 0; r0 < from.rows; r0 += side) {
      const int64_t r1 = std::min(r0 + side, from.rows);
      for (int64_t c = c0; c < c1; ++c) {
        T* out = to.row<T>(c);
        for (int64_t r = r0; r < r1; ++r) out[r] = from.row<T>(r)[c];
      }
    }
  });
}

}  // namespace

void transpose(Ctx& ctx, const MatrixView& from, const MatrixView& to) {
  if (ctx.planning()) return;
  if (from.dtype == Dtype::f32) transpose_of<float>(ctx, from, to);
  else transpose_of<uint8_t>(ctx, from, to);
}

void join_columns(Ctx& ctx, const MatrixView& parts, const MatrixView& whole) {
  if (ctx.planning() || whole.elements() == 0) return;
  const size_t element = size_bytes(whole.dtype), bytes = static_cast<size_t>(parts.cols) * element;
  parallel_tiles(ctx.pool(), parts.rows, 64, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t part = r / whole.rows, row = r % whole.rows;
      memcpy(static_cast<char*>(whole.data) + static_cast<size_t>(row * whole.ld + part * parts.cols) * element, static_cast<const char*>(parts.data) + static_cast<size_t>(r * parts.ld) * element,
             bytes);
    }
  });
}

}  // namespace octet::cpu
