// cuBLASLt does not run on the host: here products are plain loops over decoded operands, summed in FP32 in the order of the contraction. Everything around
// them (problem.cpp, gemm.cpp) is the program's own.
#include <cmath>

#include "core/philox.h"
#include "cuda/device.h"
#include "cuda/gemm/plans.h"
#include "numerics/formats.h"
#include "simt.h"

namespace octet::cuda {
namespace {

float value(Dtype d, const void* data, int64_t at) {
  switch (d) {
    case Dtype::f32: return static_cast<const float*>(data)[at];
    case Dtype::bf16: return to_float(static_cast<const bf16*>(data)[at]);
    default: return decode(d, static_cast<const uint8_t*>(data)[at]);
  }
}

// A scale of bytes in tiles, by cuBLAS' documentation ("1D Block Scaling Factors Layout"): blocks of 128 rows (outer) by 4 scales (inner), row-major, with sf_inner_dim scales a row.
float tiled_scale(const Operand& o, int64_t outer, int64_t inner) {
  const int64_t sf_inner_dim = (o.k() / o.block_cols + 3) / 4 * 4, sf_inner = inner / 4 * 4, sf_outer = outer / 128;
  const int64_t offset = (sf_inner + sf_outer * sf_inner_dim) * 128 + outer % 32 * 16 + outer % 128 / 32 * 4 + inner % 4;
  return decode(o.scale_inv.dtype, o.scale_inv.as<uint8_t>()[offset]);
}

// The operand as floats [rows, k].
std::vector<float> decoded(const Operand& o) {
  std::vector<float> x(static_cast<size_t>(o.rows() * o.k()));
  for (int64_t r = 0; r < o.rows(); ++r) {
    for (int64_t c = 0; c < o.k(); ++c) {
      const int64_t at = o.transposed ? c * o.data.ld + r : r * o.data.ld + c;
      const bool packed = o.data.dtype == Dtype::e2m1;   // two codes a byte, the first in the lower half
      float v = packed ? decode<Dtype::e2m1>(static_cast<uint8_t>(static_cast<const uint8_t*>(o.data.data)[at / 2] >> at % 2 * 4 & 0xF)) : value(o.data.dtype, o.data.data, at);
      if (o.quantized() && o.scale_inv.dtype != Dtype::f32) {
        v *= tiled_scale(o, r, c / o.block_cols);
      } else if (o.quantized()) {
        const int64_t block_row = o.block_rows ? r / o.block_rows : 0, block_col = o.block_cols ? c / o.block_cols : 0;
        v *= o.scale_inv.as<float>()[block_row * o.scale_row_stride + block_col * o.scale_col_stride];
      }
      x[static_cast<size_t>(r * o.k() + c)] = v;
    }
  }
  return x;
}

void multiply(const GemmProblem& p, const GemmTerm& term, const MatrixView& out, const Tensor& bias, const float* alpha_beta) {
  const std::vector<float> a = decoded(term.a), b = decoded(term.b);
  for (int64_t m = 0; m < p.m; ++m) {
    for (int64_t n = 0; n < p.n; ++n) {
      float sum = 0;
      for (int64_t k = 0; k < p.k; ++k) sum = fmaf(a[static_cast<size_t>(m * p.k + k)], b[static_cast<size_t>(n * p.k + k)], sum);
      if (alpha_beta) sum *= alpha_beta[0];
      if (p.has_bias) sum += value(p.bias, bias.data, n);
      if (p.out == Dtype::f32) {
        float& at = out.row<float>(m)[n];
        at = (alpha_beta ? alpha_beta[1] != 0.0f : p.accumulate) ? at + sum : sum;
      } else {
        out.row<bf16>(m)[n] = to_bf16(sum);
      }
    }
  }
}

}  // namespace

struct GemmPlans::Plan {};
GemmPlans::GemmPlans(Device& device) : device_(device) {}
GemmPlans::~GemmPlans() = default;

void GemmPlans::run(const GemmProblem& p, const GemmTerm& term, const MatrixView& out, const Tensor& bias, const float* alpha_beta) {
  plans_[p];
  simt::submit(device_.stream(), [=] { multiply(p, term, out, bias, alpha_beta); });
}

// No algorithms to choose from: the words of a product are those it was given, or a function of its name, so that their way through checkpoints can be tested.
std::pair<int, int> GemmPlans::tune(void*, size_t) { return {static_cast<int>(plans_.size()), 0}; }
std::map<std::string, GemmPlans::Algorithm> GemmPlans::choices() const {
  std::map<std::string, Algorithm> out = wanted_;
  for (const auto& [p, plan] : plans_) {
    const std::string key = describe(p);
    const auto wanted = wanted_.find(key);
    out[key] = wanted != wanted_.end() ? wanted->second : Algorithm{fnv1a64(key), ~uint64_t{0}, 0, 1, 2, 3, 4, 5};
  }
  return out;
}
void GemmPlans::choose(const std::map<std::string, Algorithm>& choices) { wanted_ = choices; }
size_t GemmPlans::library_version() { return 0; }

void Device::Release::operator()(GemmPlans* p) const { delete p; }
GemmPlans& Device::gemm_plans() {
  if (!gemm_plans_) gemm_plans_.reset(new GemmPlans(*this));
  return *gemm_plans_;
}

}  // namespace octet::cuda
