#include "ops/activation.h"

#include <algorithm>

#include "cpu/cpu_ops.h"
#include "cpu/scratch.h"
#include "cpu/simd.h"

namespace octet::cpu {
namespace {
constexpr int64_t tile_rows = 8;
}

void swiglu_quantize(Ctx& ctx, const Tensor& gate_up, const Tensor& y_out, const QuantizedOut& images) {
  Arena::Scope scope(ctx.scratch());
  const int64_t rows = gate_up.rows(), n = gate_up.cols() / 2;
  const Tensor y = y_out.shape.rank() ? y_out : ctx.scratch().alloc(gate_up.dtype, {rows, n});
  const WorkerScratch scratch(ctx, 3 * n);
  if (!ctx.planning()) {
    parallel_tiles(ctx.pool(), rows, tile_rows, [&](int64_t r0, int64_t r1, int worker) {
      float *t0 = scratch.of(worker), *out = t0 + 2 * n;
      for (int64_t r = r0; r < r1; ++r) {
        const float* gate = read_row(gate_up, r, t0);
        const float* up = gate + n;
        for (int64_t i = 0; i < n; ++i) out[i] = gate[i] / (1.0f + fast_exp(-gate[i])) * up[i];
        write_row(y, r, out);
      }
    });
  }
  if (images.wanted()) quantize(ctx, y, images);
}

void swiglu_backward(Ctx& ctx, const Tensor& dy, const Tensor& gate_up, const Tensor& d_out, const QuantizedOut& gate_images, const QuantizedOut& up_images) {
  Arena::Scope scope(ctx.scratch());
  const int64_t rows = gate_up.rows(), n = gate_up.cols() / 2;
  const Tensor d_gate_up = d_out.shape.rank() ? d_out : ctx.scratch().alloc(gate_up.dtype, gate_up.shape);
  const WorkerScratch scratch(ctx, 5 * n);
  if (!ctx.planning()) {
    parallel_tiles(ctx.pool(), rows, tile_rows, [&](int64_t r0, int64_t r1, int worker) {
      float *t0 = scratch.of(worker), *t1 = t0 + 2 * n, *out = t1 + n;
      for (int64_t r = r0; r < r1; ++r) {
        const float *gate = read_row(gate_up, r, t0), *up = gate + n, *d = read_row(dy, r, t1);
        for (int64_t i = 0; i < n; ++i) {
          const float sigmoid = 1.0f / (1.0f + fast_exp(-gate[i]));
          const float silu = gate[i] * sigmoid;
          out[i] = d[i] * up[i] * (sigmoid + silu * (1.0f - sigmoid));
          out[n + i] = d[i] * silu;
        }
        write_row(d_gate_up, r, out);
      }
    });
  }
  if (gate_images.wanted()) quantize(ctx, MatrixView(d_gate_up).columns(0, n), gate_images);
  if (up_images.wanted()) quantize(ctx, MatrixView(d_gate_up).columns(n, n), up_images);
}

}  // namespace octet::cpu
