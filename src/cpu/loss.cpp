#include "ops/loss.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/cpu_ops.h"
#include "cpu/scratch.h"
#include "cpu/simd.h"

namespace octet::cpu {

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
        const float factor = scale * (1.0f + 2.0f * z_coefficient * lse) / sum;
        for (int64_t i = 0; i < vocab; ++i) p[i] *= factor;
        p[label] -= scale;
      }
      if (grad_scale) write_row(logits, r, p);
    }
  });
}

}  // namespace octet::cpu
