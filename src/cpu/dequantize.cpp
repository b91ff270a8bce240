#include "cpu/dequantize.h"

#include <algorithm>

#include "cpu/convert.h"
#include "cpu/cpu_ops.h"
#include "cpu/scratch.h"
#include "cpu/simd.h"

namespace octet::cpu {

void decode_row(const Operand& o, int64_t r, float* out) {
  const int64_t cols = o.data.cols;
  if (!o.quantized()) return widen(o.data.row<bf16>(r), out, cols);
  const uint8_t* q = o.data.row<uint8_t>(r);
  const int64_t grid_cols = o.scale_inv.cols();
  const float* s = o.scale_inv.as<float>() + (o.block_rows ? r / o.block_rows : 0) * grid_cols;
  const int64_t block = o.block_cols ? o.block_cols : cols;
  if (block >= 16) {
    for (int64_t b = 0; b < grid_cols; ++b) decode_array(o.data.dtype, q + b * block, s[b], out + b * block, std::min(block, cols - b * block));
    return;
  }
  decode_array(o.data.dtype, q, 1.0f, out, cols);
  if (block == 1) {
    for (int64_t c = 0; c < cols; ++c) out[c] *= s[c];
  } else {
    for (int64_t c = 0; c < cols; ++c) out[c] *= s[c / block];
  }
}

void dequantize(Ctx& ctx, const Operand& image, const MatrixView& out) {
  Arena::Scope scope(ctx.scratch());
  const WorkerScratch scratch(ctx, image.data.cols);
  if (ctx.planning()) return;
  parallel_tiles(ctx.pool(), out.rows, 64, [&](int64_t r0, int64_t r1, int worker) {
    for (int64_t r = r0; r < r1; ++r) {
      decode_row(image, r, scratch.of(worker));
      write_row(out, r, scratch.of(worker));
    }
  });
}

}  // namespace octet::cpu
