#include "ops/loss.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/cpu_ops.h"
#include "cpu/scratch.h"
#include "cpu/simd.h"

namespace octet::cpu {

namespace {

// p: exp(x - M) of the first n columns on entry, their gradient on return; label: among them, or -1.
void scale_gradient(float* p, int64_t n, float scale, float factor, int64_t label) {
  for (int64_t i = 0; i < n; ++i) p[i] *= factor;
  if (label >= 0) p[label] -= scale;
}

// The label's column on this shard, or -1.
int64_t column_of(int32_t label, int64_t first, int64_t columns) {
  const int64_t at = label - first;
  return label >= 0 && at >= 0 && at < columns ? at : -1;
}

}  // namespace

void cross_entropy(Ctx& ctx, const Tensor& logits, const Tensor& labels, int64_t vocab, float z_coefficient, const float* grad_scale, const Tensor& loss, const Tensor& z) {
  Arena::Scope scope(ctx.scratch());
  const int64_t width = logits.cols();
  const WorkerScratch scratch(ctx, 2 * width);
  if (ctx.planning()) return;
  const float scale = grad_scale ? *grad_scale : 0.0f;
  parallel_tiles(ctx.pool(), logits.rows(), 8, [&](int64_t r0, int64_t r1, int worker) {
    float *tmp = scratch.of(worker), *p = tmp + width;
    for (int64_t r = r0; r < r1; ++r) {
      const int32_t label = labels.as<int32_t>()[r];
      loss.as<float>()[r] = z.as<float>()[r] = 0.0f;
      std::fill(p + vocab, p + width, 0.0f);
      if (label < 0) {
        std::fill(p, p + vocab, 0.0f);
      } else {
        const float* x = read_row(logits, r, tmp);
        const float m = lane_max(x, vocab, -std::numeric_limits<float>::infinity());
        for (int64_t i = 0; i < vocab; ++i) p[i] = fast_exp(x[i] - m);
        const float sum = lane_sum(p, vocab);
        const float lse = m + std::log(sum);
        loss.as<float>()[r] = lse - x[label];
        z.as<float>()[r] = z_coefficient * lse * lse;
        scale_gradient(p, vocab, scale, scale * (1.0f + 2.0f * z_coefficient * lse) / sum, label);
      }
      if (grad_scale) write_row(logits, r, p);
    }
  });
}

void softmax_parts(Ctx& ctx, const Tensor& logits, const Tensor& labels, int64_t first, int64_t columns, const Tensor& parts) {
  Arena::Scope scope(ctx.scratch());
  const int64_t width = logits.cols();
  const WorkerScratch scratch(ctx, 2 * width);
  if (ctx.planning()) return;
  parallel_tiles(ctx.pool(), logits.rows(), 8, [&](int64_t r0, int64_t r1, int worker) {
    float *tmp = scratch.of(worker), *p = tmp + width;
    for (int64_t r = r0; r < r1; ++r) {
      const float* x = read_row(logits, r, tmp);
      const float m = lane_max(x, columns, -std::numeric_limits<float>::infinity());
      const float shift = std::isfinite(m) ? m : std::max(m, 0.0f);   // -Inf alone sums to 0, other ranks may have numbers; NaN and +Inf give NaN
      for (int64_t i = 0; i < columns; ++i) p[i] = fast_exp(x[i] - shift);
      const int64_t label = column_of(labels.as<int32_t>()[r], first, columns);
      float* part = parts.as<float>() + 3 * r;
      part[0] = m;
      part[1] = lane_sum(p, columns);
      part[2] = label >= 0 ? x[label] : 0.0f;
    }
  });
}

void cross_entropy_of_parts(Ctx& ctx, const Tensor& logits, const Tensor& labels, int64_t first, int64_t columns, const Tensor& parts, float z_coefficient,
                            const float* grad_scale, const Tensor& loss, const Tensor& z) {
  Arena::Scope scope(ctx.scratch());
  const int64_t width = logits.cols(), rows = logits.rows(), shards = parts.shape[0];
  const WorkerScratch scratch(ctx, 2 * width);
  if (ctx.planning()) return;
  const float scale = grad_scale ? *grad_scale : 0.0f;
  parallel_tiles(ctx.pool(), rows, 8, [&](int64_t r0, int64_t r1, int worker) {
    float *tmp = scratch.of(worker), *p = tmp + width;
    for (int64_t r = r0; r < r1; ++r) {
      const int32_t label = labels.as<int32_t>()[r];
      loss.as<float>()[r] = z.as<float>()[r] = 0.0f;
      std::fill(p, p + width, 0.0f);
      if (label >= 0) {
        const auto part = [&](int64_t s) { return parts.as<float>() + 3 * (s * rows + r); };
        float m = part(0)[0], sum = 0.0f, of_label = 0.0f;
        for (int64_t s = 1; s < shards; ++s) m = std::max(m, part(s)[0]);
        for (int64_t s = 0; s < shards; ++s) {
          sum += part(s)[1] * fast_exp(part(s)[0] - m);
          of_label += part(s)[2];
        }
        const float lse = m + std::log(sum);
        loss.as<float>()[r] = lse - of_label;
        z.as<float>()[r] = z_coefficient * lse * lse;
        if (grad_scale) {
          const float* x = read_row(logits, r, tmp);
          for (int64_t i = 0; i < columns; ++i) p[i] = fast_exp(x[i] - m);
          scale_gradient(p, columns, scale, scale * (1.0f + 2.0f * z_coefficient * lse) / sum, column_of(label, first, columns));
        }
      }
      if (grad_scale) write_row(logits, r, p);
    }
  });
}

}  // namespace octet::cpu
