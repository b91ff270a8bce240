#include "ops/reduce.h"

#include <algorithm>
#include <cstring>

#include "cpu/cpu_ops.h"
#include "cpu/scratch.h"
#include "cpu/simd.h"

namespace octet::cpu {
namespace {

constexpr int64_t tile = 1 << 14;

template <class F>
void tiled_sum(Ctx& ctx, const Tensor& x, double* sum, F&& term) {
  Arena::Scope scope(ctx.scratch());
  const int64_t n = x.elements();
  double* partial = ctx.scratch().alloc_array<double>((n + tile - 1) / tile);
  if (ctx.planning()) return;
  parallel_tiles(ctx.pool(), n, tile, [&](int64_t begin, int64_t end, int) {
    // Four double lanes: enough to hide the latency, and a fixed order.
    double lane[4] = {0, 0, 0, 0};
    const float* p = x.as<float>();
    int64_t i = begin;
    for (; i + 4 <= end; i += 4) {
      for (int l = 0; l < 4; ++l) lane[l] += term(p[i + l]);
    }
    for (; i < end; ++i) lane[0] += term(p[i]);
    partial[begin / tile] = (lane[0] + lane[2]) + (lane[1] + lane[3]);
  });
  double total = 0;
  for (int64_t i = 0; i < (n + tile - 1) / tile; ++i) total += partial[i];
  *sum += total;
}

}  // namespace

void sum(Ctx& ctx, const Tensor& x, double* total) {
  tiled_sum(ctx, x, total, [](float v) { return static_cast<double>(v); });
}

void sum_squares(Ctx& ctx, const Tensor& x, double* total) {
  tiled_sum(ctx, x, total, [](float v) { return static_cast<double>(v) * static_cast<double>(v); });
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

}  // namespace octet::cpu
