#include "ops/rope.h"

#include <algorithm>
#include <cmath>

#include "cpu/cpu_ops.h"
#include "cpu/scratch.h"
#include "cpu/simd.h"

namespace octet::cpu {
namespace {

constexpr int64_t tile_rows = 16;

// (a, b) -> (a cos - b sin, b cos + a sin); direction -1 turns back.
void rotate(float* u, const float* cos_sin, int64_t rotary_dim, float direction) {
  const int64_t half = rotary_dim / 2;
  const float *cos = cos_sin, *sin = cos_sin + half;
  for (int64_t i = 0; i < half; ++i) {
    const float a = u[i], b = u[i + half], s = sin[i] * direction;
    u[i] = a * cos[i] - b * s;
    u[i + half] = b * cos[i] + a * s;
  }
}

}  // namespace

void qk_norm_rope(Ctx& ctx, const Tensor& qkv, const Tensor& positions, const Tensor& cos_sin, const HeadGeometry& g, const QkNorm& norm, const Tensor& out) {
  Arena::Scope scope(ctx.scratch());
  const int64_t d = g.head_dim, rotated = g.heads + g.kv_heads;
  const bool normed = norm.gamma_q.shape.rank() != 0;
  const WorkerScratch scratch(ctx, g.qkv_width());
  float* gammas = ctx.scratch().alloc_array<float>(normed ? 2 * d : 0);
  if (ctx.planning()) return;
  if (normed) {
    std::copy_n(read_row(norm.gamma_q, 0, gammas), d, gammas);
    std::copy_n(read_row(norm.gamma_k, 0, gammas + d), d, gammas + d);
  }
  parallel_tiles(ctx.pool(), qkv.rows(), tile_rows, [&](int64_t r0, int64_t r1, int worker) {
    float* row = scratch.of(worker);
    for (int64_t r = r0; r < r1; ++r) {
      const float* in = read_row(qkv, r, row);
      if (in != row) std::copy_n(in, g.qkv_width(), row);
      const float* table = cos_sin.as<float>() + positions.as<int32_t>()[r] * g.rotary_dim;
      for (int64_t h = 0; h < rotated; ++h) {
        float* u = row + h * d;
        if (normed) {
          const float* gamma = gammas + (h < g.heads ? 0 : d);
          const float rstd = 1.0f / std::sqrt(lane_dot(u, u, d) / static_cast<float>(d) + g.norm_eps);
          norm.rstd.as<float>()[r * rotated + h] = rstd;
          for (int64_t i = 0; i < d; ++i) u[i] = u[i] * rstd * gamma[i];
        }
        rotate(u, table, g.rotary_dim, 1.0f);
      }
      write_row(out, r, row);
    }
  });
}

void qk_norm_rope_backward(Ctx& ctx, const Tensor& d_out, const Tensor& qkv, const Tensor& positions, const Tensor& cos_sin, const HeadGeometry& g, const QkNorm& norm,
                           const Tensor& d_qkv) {
  Arena::Scope scope(ctx.scratch());
  const int64_t d = g.head_dim, rotated = g.heads + g.kv_heads, width = g.qkv_width();
  const bool normed = norm.gamma_q.shape.rank() != 0;
  const int64_t tiles = (d_out.rows() + tile_rows - 1) / tile_rows;
  const WorkerScratch scratch(ctx, 2 * width);
  float* gammas = ctx.scratch().alloc_array<float>(normed ? 2 * d : 0);
  float* partial = ctx.scratch().alloc_array<float>(normed ? tiles * 2 * d : 0);
  if (ctx.planning()) return;
  if (normed) {
    std::copy_n(read_row(norm.gamma_q, 0, gammas), d, gammas);
    std::copy_n(read_row(norm.gamma_k, 0, gammas + d), d, gammas + d);
    std::fill_n(partial, tiles * 2 * d, 0.0f);
  }
  ctx.pool().run(tiles, [&](int64_t tile, int worker) {
    float *grad = scratch.of(worker), *saved = grad + width;
    for (int64_t r = tile * tile_rows; r < std::min(d_out.rows(), (tile + 1) * tile_rows); ++r) {
      const float* in = read_row(d_out, r, grad);
      if (in != grad) std::copy_n(in, width, grad);
      const float* source = normed ? read_row(qkv, r, saved) : nullptr;
      const float* table = cos_sin.as<float>() + positions.as<int32_t>()[r] * g.rotary_dim;
      for (int64_t h = 0; h < rotated; ++h) {
        float* u = grad + h * d;
        rotate(u, table, g.rotary_dim, -1.0f);
        if (!normed) continue;
        const float* s = source + h * d;
        const float* gamma = gammas + (h < g.heads ? 0 : d);
        float* dg = partial + tile * 2 * d + (h < g.heads ? 0 : d);
        const float rstd = norm.rstd.as<float>()[r * rotated + h];
        for (int64_t i = 0; i < d; ++i) {
          dg[i] += u[i] * (s[i] * rstd);
          u[i] *= gamma[i];
        }
        const float c = lane_dot(u, s, d) / static_cast<float>(d) * rstd * rstd;
        for (int64_t i = 0; i < d; ++i) u[i] = rstd * (u[i] - s[i] * c);
      }
      write_row(d_qkv, r, grad);
    }
  });
  if (!normed) return;
  for (int64_t t = 0; t < tiles; ++t) {
    for (int64_t i = 0; i < d; ++i) {
      norm.dgamma_q.as<float>()[i] += partial[t * 2 * d + i];
      norm.dgamma_k.as<float>()[i] += partial[t * 2 * d + d + i];
    }
  }
}

}  // namespace octet::cpu
