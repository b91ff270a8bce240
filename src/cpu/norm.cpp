#include <algorithm>
#include <cmath>

#include "cpu/cpu_ops.h"
#include "cpu/scratch.h"
#include "cpu/simd.h"

namespace octet::cpu {
namespace {
constexpr int64_t tile_rows = 16;
}

void rmsnorm_quantize(Ctx& ctx, const Tensor& x, const Tensor& delta, const Tensor& gamma, float eps, const RmsNormOut& out) {
  Arena::Scope scope(ctx.scratch());
  const int64_t rows = x.rows(), h = x.cols();
  // The images are made from the rounded y, which needs a place even when the caller does not want it.
  const bool wants_images = out.images.wanted();
  const Tensor y = out.y.shape.rank() ? out.y : wants_images ? ctx.scratch().alloc(x.dtype, x.shape) : Tensor{};
  const WorkerScratch scratch(ctx, 3 * h);
  float* wide_gamma = ctx.scratch().alloc_array<float>(h);
  if (!ctx.planning()) {
    const float* g = read_row(gamma, 0, wide_gamma);
    parallel_tiles(ctx.pool(), rows, tile_rows, [&](int64_t r0, int64_t r1, int worker) {
      float *t0 = scratch.of(worker), *t1 = t0 + h, *t2 = t1 + h;
      for (int64_t r = r0; r < r1; ++r) {
        const float* s = read_row(x, r, t0);
        if (delta) {
          const float* d = read_row(delta, r, t1);
          for (int64_t i = 0; i < h; ++i) t2[i] = s[i] + d[i];
          write_row(out.sum, r, t2);
          s = read_row(out.sum, r, t0);  // the norm sees the rounded sum
        }
        const float rstd = 1.0f / std::sqrt(lane_dot(s, s, h) / static_cast<float>(h) + eps);
        if (out.rstd) out.rstd.as<float>()[r] = rstd;
        if (!y) continue;
        for (int64_t i = 0; i < h; ++i) t2[i] = s[i] * rstd * g[i];
        write_row(y, r, t2);
      }
    });
  }
  if (wants_images) quantize(ctx, y, out.images);
}

void rmsnorm_backward(Ctx& ctx, const Tensor& dy, const Tensor& s, const Tensor& gamma, const Tensor& rstd, const Tensor& d_residual, const Tensor& dx,
                      const Tensor& dgamma) {
  Arena::Scope scope(ctx.scratch());
  const int64_t rows = s.rows(), h = s.cols();
  const int64_t tiles = (rows + tile_rows - 1) / tile_rows;
  const WorkerScratch scratch(ctx, 5 * h);
  float* wide_gamma = ctx.scratch().alloc_array<float>(h);
  float* partial = ctx.scratch().alloc_array<float>(tiles * h);
  if (ctx.planning()) return;
  const float* g = read_row(gamma, 0, wide_gamma);
  ctx.pool().run(tiles, [&](int64_t tile, int worker) {
    float *t0 = scratch.of(worker), *t1 = t0 + h, *t2 = t1 + h, *t3 = t2 + h, *t4 = t3 + h;
    float* dg = partial + tile * h;
    std::fill(dg, dg + h, 0.0f);
    for (int64_t r = tile * tile_rows; r < std::min(rows, (tile + 1) * tile_rows); ++r) {
      const float *sr = read_row(s, r, t0), *dyr = read_row(dy, r, t1);
      const float rs = rstd.as<float>()[r];
      for (int64_t i = 0; i < h; ++i) {
        t2[i] = dyr[i] * g[i];
        dg[i] += dyr[i] * (sr[i] * rs);
      }
      // d/ds of s * rstd: rstd * (u - s * rstd^2 * mean(u s)), u = dy * gamma
      const float c = lane_dot(t2, sr, h) / static_cast<float>(h) * rs * rs;
      const float* res = d_residual ? read_row(d_residual, r, t3) : nullptr;
      for (int64_t i = 0; i < h; ++i) t4[i] = rs * (t2[i] - sr[i] * c);
      if (res) {
        for (int64_t i = 0; i < h; ++i) t4[i] += res[i];
      }
      write_row(dx, r, t4);
    }
  });
  float* dg = dgamma.as<float>();
  for (int64_t t = 0; t < tiles; ++t) {
    for (int64_t i = 0; i < h; ++i) dg[i] += partial[t * h + i];
  }
}

}  // namespace octet::cpu
