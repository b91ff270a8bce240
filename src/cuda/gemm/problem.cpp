// What a product is, before anybody multiplies: no CUDA library here, so that the tests on the host share it.
#include <fmt/format.h>

#include "cuda/gemm/plans.h"

namespace octet::cuda {
namespace {

const char* name_of(ScaleMode m) {
  constexpr const char* names[] = {"", " by tensor", " by row", " 1x128", " 128x128", " other blocks", " MX", " NV"};
  return names[static_cast<size_t>(m)];
}

bool narrow(Dtype d) { return size_bytes(d) == 1; }

}  // namespace

std::string describe(const GemmProblem& p) {
  return fmt::format("[{}, {}] {}{} = {}{} [{}, {}]{} ld {} . {}{} [{}, {}]^T{} ld {}, {}{}", p.m, p.n, name(p.out), p.ldd == p.n ? "" : fmt::format(" ld {}", p.ldd), name(p.a), name_of(p.scale_a), p.m,
                     p.k, p.transposed_a ? " stored transposed" : "", p.lda, name(p.b), name_of(p.scale_b), p.n, p.k, p.transposed_b ? " stored transposed" : "", p.ldb,
                     p.fast ? "fast" : "accurate", p.accumulate ? ", added" : "") +
         (p.has_bias ? fmt::format(", {} bias", name(p.bias)) : "") + (p.alignment == 16 ? "" : fmt::format(", aligned to {}", p.alignment));
}

ScaleMode scale_mode(const Operand& o) { return o.quantized() ? octet::scale_mode(o.scale, o.block_rows, o.block_cols) : ScaleMode::none; }

GemmProblem problem_of(const GemmTerm& term, const MatrixView& out, float beta, Accumulate accumulate, const Tensor& bias) {
  GemmProblem p;
  p.m = out.rows;
  p.n = out.cols;
  p.k = term.a.k();
  p.lda = term.a.data.ld;
  p.ldb = term.b.data.ld;
  p.ldd = out.ld;
  p.a = term.a.data.dtype;
  p.b = term.b.data.dtype;
  p.out = out.dtype;
  p.scale_a = scale_mode(term.a);
  p.scale_b = scale_mode(term.b);
  p.transposed_a = term.a.transposed;
  p.transposed_b = term.b.transposed;
  p.fast = accumulate == Accumulate::fast && narrow(p.a) && (p.scale_a == ScaleMode::tensor || p.scale_a == ScaleMode::row);
  p.accumulate = beta != 0.0f;
  p.has_bias = bias.shape.rank() != 0;
  if (p.has_bias) p.bias = bias.dtype;
  // Column ranges begin where they begin: what cuBLASLt may assume is the lowest bit set in any address or row length.
  const auto address = [](const void* pointer) { return reinterpret_cast<uint64_t>(pointer); };
  const auto row_bytes = [](int64_t ld, Dtype d) { return static_cast<uint64_t>(ld) * size_bytes(d); };
  const uint64_t bits = address(term.a.data.data) | address(term.b.data.data) | address(out.data) | row_bytes(p.lda, p.a) | row_bytes(p.ldb, p.b) | row_bytes(p.ldd, p.out) | 16;
  p.alignment = static_cast<uint32_t>(bits & (~bits + 1));
  return p;
}

std::string why_emulated(const GemmProblem& p, Capability on) { return why_no_product(p.a, p.scale_a, p.b, p.scale_b, on); }

std::string why_refused(const GemmProblem& p) {
  if (p.scale_a == ScaleMode::none && p.scale_b == ScaleMode::none) return {};
  if (p.transposed_a || p.transposed_b) return "FP8 operands want the contraction contiguous, and one is stored the other way round";
  if (is_tiled(p.scale_a) && p.k % 32 != 0) return fmt::format("products with E8M0 or E4M3 block scales need a contraction that is a multiple of 32, this one is {}", p.k);
  if (p.k % 16 != 0 || p.lda % 16 != 0 || p.ldb % 16 != 0 || p.n % 16 != 0 || p.m % 16 != 0 || p.ldd % 8 != 0 || p.alignment < 16) {
    return fmt::format("FP8 products need extents and addresses that are multiples of 16, these are {} x {} x {}", p.m, p.n, p.k);
  }
  return {};
}

}  // namespace octet::cuda
