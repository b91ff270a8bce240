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

// The operand as floats [rows, k].
std::vector<float> decoded(const Operand& o) {
  std::vector<float> x(static_cast<size_t>(o.rows() * o.k()));
  for (int64_t r = 0; r < o.rows(); ++r) {
    for (int64_t c = 0; c < o.k(); ++c) {
      const int64_t at = o.transposed ? c * o.data.ld + r : r * o.data.ld + c;
      float v = value(o.data.dtype, o.data.data, at);
      if (o.quantized()) {
        const int64_t block_row = o.block_rows ? r / o.block_rows : 0, block_col = o.block_cols ? c / o.block_cols : 0;
        v *= o.scale_inv.as<float>()[block_row * o.scale_row_stride + block_col * o.scale_col_stride];
      }
      x[static_cast<size_t>(r * o.k() + c)] = v;
    }
  }
  return x;
}

void multiply(const GemmProblem& p, const GemmTerm& term, const MatrixView& out, const Tensor& bias) {
  const std::vector<float> a = decoded(term.a), b = decoded(term.b);
  for (int64_t m = 0; m < p.m; ++m) {
    for (int64_t n = 0; n < p.n; ++n) {
      float sum = 0;
      for (int64_t k = 0; k < p.k; ++k) sum = fmaf(a[static_cast<size_t>(m * p.k + k)], b[static_cast<size_t>(n * p.k + k)], sum);
      if (p.has_bias) sum += value(p.bias, bias.data, n);
      if (p.out == Dtype::f32) {
        float& at = out.row<float>(m)[n];
        at = p.accumulate ? at + sum : sum;
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

void GemmPlans::run(const GemmProblem& p, const GemmTerm& term, const MatrixView& out, const Tensor& bias) {
  plans_[p];
  simt::submit(device_.stream(), [=] { multiply(p, term, out, bias); });
}

// No algorithms to choose from: the words of a product are those it was given, or a function of its name, so that their way through checkpoints can be tested.
std::pair<int, int> GemmPlans::tune(void*, size_t) { return {static_cast<int>(plans_.size()), 0}; }
std::map<std::string, GemmPlans::Algorithm> GemmPlans::choices() const {
  std::map<std::string, Algorithm> out;
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
