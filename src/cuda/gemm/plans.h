// Matrix products through cuBLASLt: which scaling modes a product has natively, one plan a shape, its algorithm chosen by timing.
//
// In cuBLASLt's column-major terms, out[m, n] = a[m, k] . b[n, k]^T is D = A^T B with A = our b (n x k), B = our a (m x k), both with the contraction
// contiguous: the only form FP8 has on Hopper. Scale modes and layouts (cuBLASLt's documentation; tests/parity/device/gemm_test.cpp):
//   one a tensor      CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F
//   one a row         OUTER_VEC_32F, of both operands or of none
//   1 x 128           VEC128_32F,     scales [k / 128][rows]
//   128 x 128         BLK128x128_32F, scales [rows / 128][k / 128 rounded up to 4]; of one operand at most
//   1 x 32, E8M0      VEC32_UE8M0  (MXFP8), bytes in tiles (kernels/block_scales.h), which gemm() makes in scratch memory; from compute capability 10.0 on
//   1 x 16, E4M3      VEC16_UE4M3  (NVFP4), likewise; E2M1 codes two a byte, the tensors' factors as an alpha in device memory
// Other granularities and formats have no native product: gemm() multiplies BF16 copies of the decoded operands, a named emulation that a run asks for with
// precision.emulate. A product whose mode is native but whose extents or layout are not is refused, never emulated in silence.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ops/gemm.h"
#include "recipe/hardware.h"

namespace octet::cuda {

class Device;

// What decides a plan. Leading dimensions in elements.
struct GemmProblem {
  int64_t m = 0, n = 0, k = 0, lda = 0, ldb = 0, ldd = 0;
  Dtype a = Dtype::bf16, b = Dtype::bf16, out = Dtype::bf16, bias = Dtype::bf16;
  ScaleMode scale_a = ScaleMode::none, scale_b = ScaleMode::none;
  bool transposed_a = false, transposed_b = false;   // stored [k, rows]: unquantized operands only
  uint32_t alignment = 16;                           // bytes that divide every pointer and row, at most 16
  bool fast = false, accumulate = false, has_bias = false;
  auto operator<=>(const GemmProblem&) const = default;
};
// "[256, 384] bf16 = e4m3 1x128 [256, 512] ld 512 . e4m3 128x128 [384, 512]^T ld 512, accurate": unique, the key of a stored choice.
std::string describe(const GemmProblem& p);

ScaleMode scale_mode(const Operand& o);
// MXFP8 and NVFP4, whose operands gemm() makes anew for cuBLASLt (kernels/block_scales.h).
inline bool is_tiled(ScaleMode m) { return m == ScaleMode::mx_1x32 || m == ScaleMode::nv_1x16; }
GemmProblem problem_of(const GemmTerm& term, const MatrixView& out, float beta, Accumulate accumulate, const Tensor& bias);
// Why cuBLASLt has no mode for these formats and scales on `on` (the matrix of recipe/hardware.h); empty when it has one.
std::string why_emulated(const GemmProblem& p, Capability on);
// Why a product that has a mode cannot be done as it is; empty when it can.
std::string why_refused(const GemmProblem& p);

class GemmPlans {
 public:
  explicit GemmPlans(Device& device);
  ~GemmPlans();

  // Runs the plan of `p`, made at its first use. alpha_beta: of NVFP4 products, in device memory. Throws Error(device) when cuBLASLt has none or refuses it, naming the product.
  void run(const GemmProblem& p, const GemmTerm& term, const MatrixView& out, const Tensor& bias, const float* alpha_beta = nullptr);

  // Times the candidates of every plan made so far and keeps the fastest, using `memory` for operands and result; a product that does not fit keeps its
  // first candidate; one that was timed is not timed again. Outside the step. Returns how many were timed and how many did not fit.
  std::pair<int, int> tune(void* memory, size_t bytes);
  // The algorithm in use by product, as cuBLASLt's opaque words: stored with a run, so that a resumed run multiplies alike; with those that were given for products not made yet.
  // Words that this cuBLASLt does not take are an Error(device): of choose(), or when the product is first made.
  using Algorithm = std::array<uint64_t, 8>;
  std::map<std::string, Algorithm> choices() const;
  void choose(const std::map<std::string, Algorithm>& choices);

  static size_t library_version();   // of cuBLASLt

  static constexpr size_t workspace_bytes = size_t{64} << 20;

 private:
  struct Plan;
  Plan& plan_of(const GemmProblem& p);
  void take_choice(Plan& plan);
  std::unique_ptr<Plan> make_plan(const GemmProblem& p);
  void execute(const Plan& plan, size_t candidate, const GemmTerm& term, const MatrixView& out, const Tensor& bias, const float* alpha_beta);

  Device& device_;
  void* handle_ = nullptr;      // cublasLtHandle_t
  void* workspace_ = nullptr;
  std::map<GemmProblem, std::unique_ptr<Plan>> plans_;
  std::map<std::string, Algorithm> wanted_;
};

}  // namespace octet::cuda
