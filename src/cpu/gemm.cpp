// Matrix products of the CPU backend. Operands are widened to FP32 once (decode(q) * scale_inv, or BF16 to FP32), then multiplied
// in fixed tiles, each a single-threaded call: bits do not depend on the number of threads.
#include <algorithm>

#include "cpu/blas.h"
#include "cpu/cpu_ops.h"
#include "cpu/dequantize.h"
#include "cpu/gemm_exact.h"
#include "cpu/scratch.h"
#include "cpu/simd.h"

namespace octet::cpu {
namespace {

struct Tile {
  int64_t rows, cols;
};

// Tiles are a function of the shape alone. Aim: at least 16 of them for balance, but none below about 4 MFLOP, where the call overhead shows.
Tile choose_tile(int64_t m, int64_t n, int64_t k) {
  Tile t{256, std::clamp<int64_t>(n, 1, 512)};
  while (t.rows > 32) {
    const int64_t tiles = ((m + t.rows - 1) / t.rows) * ((n + t.cols - 1) / t.cols);
    const double flops = 2.0 * static_cast<double>(t.rows / 2) * static_cast<double>(t.cols) * static_cast<double>(k);
    if (tiles >= 16 || flops < 4e6) break;
    t.rows /= 2;
  }
  return t;
}

// The operand as FP32 in its stored layout.
Flat widen_operand(Ctx& ctx, const Operand& o) {
  if (o.data.dtype == Dtype::f32) return {o.data.data ? o.data.row<float>(0) : nullptr, o.data.ld, o.transposed};
  float* out = ctx.scratch().alloc_array<float>(o.data.rows * o.data.cols);
  if (!ctx.planning()) {
    parallel_tiles(ctx.pool(), o.data.rows, 64, [&](int64_t r0, int64_t r1, int) {
      for (int64_t r = r0; r < r1; ++r) decode_row(o, r, out + r * o.data.cols);
    });
  }
  return {out, o.data.cols, o.transposed};
}

struct WideTerm {
  Flat a, b;
  int64_t k;
};

// Where logical row `row` of an operand begins.
Flat from_row(Flat f, int64_t row) { return {f.transposed ? f.data + row : f.data + row * f.ld, f.ld, f.transposed}; }

void multiply_tile(GemmMath math, std::span<const WideTerm> terms, int64_t m0, int64_t m1, int64_t n0, int64_t n1, float* c, int64_t ldc, bool accumulate) {
  for (const WideTerm& t : terms) {
    Flat b = from_row(t.b, n0);
    b.transposed = !b.transposed;  // b is stored contraction last, matmul wants [k, n]
    matmul(math, m1 - m0, n1 - n0, t.k, from_row(t.a, m0), b, accumulate, c, ldc);
    accumulate = true;
  }
}

// Rounds an FP32 tile into out and adds the bias.
void store_tile(const float* c, int64_t ldc, const MatrixView& out, int64_t m0, int64_t m1, int64_t n0, int64_t n1, const float* bias, float* row) {
  const MatrixView target = out.columns(n0, n1 - n0);
  for (int64_t i = m0; i < m1; ++i) {
    const float* src = c + (i - m0) * ldc;
    if (bias) {
      for (int64_t j = 0; j < n1 - n0; ++j) row[j] = src[j] + bias[n0 + j];
      src = row;
    }
    write_row(target, i, src);
  }
}

}  // namespace

void gemm(Ctx& ctx, std::span<const GemmTerm> terms, const MatrixView& out, float beta, Accumulate accumulate, const Tensor& bias) {
  Arena::Scope scope(ctx.scratch());
  const bool exact = ctx.gemm_math() == GemmMath::exact && terms.front().a.quantized();
  OCTET_CHECK(terms.size() <= 4, "gemm: {} terms", terms.size());
  WideTerm wide[4];
  int64_t k_total = 0;
  for (size_t t = 0; t < terms.size(); ++t) {
    k_total += terms[t].a.k();
    if (!exact) wide[t] = {widen_operand(ctx, terms[t].a), widen_operand(ctx, terms[t].b), terms[t].a.k()};
  }
  const Tile tile = choose_tile(out.rows, out.cols, k_total);
  const WorkerScratch scratch(ctx, tile.rows * tile.cols + tile.cols);
  float* wide_bias = ctx.scratch().alloc_array<float>(bias.shape.rank() ? out.cols : 0);
  if (ctx.planning() || out.elements() == 0) return;
  if (bias) std::copy_n(read_row(bias, 0, wide_bias), out.cols, wide_bias);

  const int64_t tiles_n = (out.cols + tile.cols - 1) / tile.cols, tiles_m = (out.rows + tile.rows - 1) / tile.rows;
  const std::span<const WideTerm> wide_terms(wide, terms.size());
  ctx.pool().run(tiles_m * tiles_n, [&](int64_t index, int worker) {
    const int64_t m0 = index / tiles_n * tile.rows, m1 = std::min(out.rows, m0 + tile.rows);
    const int64_t n0 = index % tiles_n * tile.cols, n1 = std::min(out.cols, n0 + tile.cols);
    float* temporary = scratch.of(worker);
    const bool direct = out.dtype == Dtype::f32;
    float* c = direct ? out.row<float>(m0) + n0 : temporary;
    const int64_t ldc = direct ? out.ld : tile.cols;
    if (exact) {
      exact_tile(terms, accumulate, m0, m1, n0, n1, c, ldc, beta != 0.0f);
    } else {
      multiply_tile(ctx.gemm_math(), wide_terms, m0, m1, n0, n1, c, ldc, beta != 0.0f);
    }
    if (!direct || bias) store_tile(c, ldc, out, m0, m1, n0, n1, bias ? wide_bias : nullptr, temporary + tile.rows * tile.cols);
  });
}

}  // namespace octet::cpu
