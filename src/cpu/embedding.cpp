#include "ops/embedding.h"

#include <algorithm>
#include <cstring>

#include "cpu/cpu_ops.h"
#include "cpu/scratch.h"
#include "cpu/simd.h"

namespace octet::cpu {

void embedding(Ctx& ctx, const Tensor& table, const Tensor& tokens, const Tensor& out, int64_t first_row) {
  if (ctx.planning()) return;
  OCTET_CHECK(table.dtype == out.dtype, "embedding: table {}, out {}", name(table.dtype), name(out.dtype));
  const size_t row_bytes = static_cast<size_t>(table.cols()) * size_bytes(table.dtype);
  parallel_tiles(ctx.pool(), tokens.elements(), 256, [&](int64_t t0, int64_t t1, int) {
    for (int64_t t = t0; t < t1; ++t) {
      char* to = static_cast<char*>(out.data) + static_cast<size_t>(t) * row_bytes;
      const int64_t row = tokens.as<int32_t>()[t] - first_row;
      if (row >= 0 && row < table.rows()) {
        memcpy(to, static_cast<char*>(table.data) + static_cast<size_t>(row) * row_bytes, row_bytes);
      } else {
        memset(to, 0, row_bytes);
      }
    }
  });
}

void embedding_backward(Ctx& ctx, const Tensor& d_out, const Tensor& tokens, const Tensor& d_table, int64_t first_row) {
  // A task owns a range of columns and walks all tokens in order: no atomics, a fixed order of additions for every element.
  constexpr int64_t column_tile = 64;
  Arena::Scope scope(ctx.scratch());
  const WorkerScratch scratch(ctx, column_tile);
  if (ctx.planning()) return;
  const int64_t h = d_table.cols();
  parallel_tiles(ctx.pool(), h, column_tile, [&](int64_t c0, int64_t c1, int worker) {
    const MatrixView grad = MatrixView(d_out).columns(c0, c1 - c0);
    for (int64_t t = 0; t < tokens.elements(); ++t) {
      const int64_t at = tokens.as<int32_t>()[t] - first_row;
      if (at < 0 || at >= d_table.rows()) continue;
      const float* g = read_row(grad, t, scratch.of(worker));
      float* row = d_table.as<float>() + at * h + c0;
      for (int64_t i = 0; i < c1 - c0; ++i) row[i] += g[i];
    }
  });
}

}  // namespace octet::cpu
