#include "cuda/gemm/plans.h"

#include <cublasLt.h>
#include <cuda_runtime.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "cuda/device.h"
#include "cuda/launch.h"

namespace octet::cuda {
namespace {

constexpr int most_candidates = 8;

void check(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error(ExitCode::device, fmt::format("cuBLASLt cannot {}: {}", what, cublasLtGetStatusName(status)), "CUDA", "run 'nvidia-smi' on this machine");
}

cudaDataType type_of(Dtype d) {
  switch (d) {
    case Dtype::f32: return CUDA_R_32F;
    case Dtype::bf16: return CUDA_R_16BF;
    case Dtype::e4m3: return CUDA_R_8F_E4M3;
    case Dtype::e5m2: return CUDA_R_8F_E5M2;
    case Dtype::e2m1: return CUDA_R_4F_E2M1;
    default: throw Error(ExitCode::internal, fmt::format("no product of {}", name(d)), "gemm");
  }
}

cublasLtMatmulMatrixScale_t mode_of(ScaleMode mode) {
  switch (mode) {
    case ScaleMode::tensor: return CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
    case ScaleMode::row: return CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    case ScaleMode::block_1x128: return CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
    case ScaleMode::block_128x128: return CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
    case ScaleMode::mx_1x32: return CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0;
    case ScaleMode::nv_1x16: return CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3;
    default: throw Error(ExitCode::internal, "no native scale mode", "gemm");
  }
}

}  // namespace

struct GemmPlans::Plan {
  GemmProblem problem;
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, d = nullptr;   // cuBLASLt's A is our b
  std::vector<cublasLtMatmulAlgo_t> candidates;
  size_t chosen = 0;
  bool timed = false;

  Plan() = default;
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  ~Plan() {
    for (auto* layout : {a, b, d}) {
      if (layout) cublasLtMatrixLayoutDestroy(layout);
    }
    if (operation) cublasLtMatmulDescDestroy(operation);
  }
  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, const T& value) const {
    check(cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof value), "describe a product");
  }
};

GemmPlans::GemmPlans(Device& device) : device_(device) {
  cublasLtHandle_t handle = nullptr;
  check(cublasLtCreate(&handle), "start");
  handle_ = handle;
  const MemorySource memory = device_.memory();
  workspace_ = memory.allocate(memory.user, workspace_bytes);
}

GemmPlans::~GemmPlans() {
  plans_.clear();
  const MemorySource memory = device_.memory();
  if (workspace_) memory.release(memory.user, workspace_);
  if (handle_) cublasLtDestroy(static_cast<cublasLtHandle_t>(handle_));
}

std::unique_ptr<GemmPlans::Plan> GemmPlans::make_plan(const GemmProblem& p) {
  auto plan = std::make_unique<Plan>();
  plan->problem = p;
  check(cublasLtMatmulDescCreate(&plan->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "describe a product");
  plan->set(CUBLASLT_MATMUL_DESC_TRANSA, p.transposed_b ? CUBLAS_OP_N : CUBLAS_OP_T);
  plan->set(CUBLASLT_MATMUL_DESC_TRANSB, p.transposed_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (p.scale_a == ScaleMode::nv_1x16) plan->set(CUBLASLT_MATMUL_DESC_POINTER_MODE, static_cast<int32_t>(CUBLASLT_POINTER_MODE_DEVICE));
  if (p.scale_a != ScaleMode::none) {
    plan->set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, static_cast<int8_t>(p.fast ? 1 : 0));
    plan->set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, static_cast<int32_t>(mode_of(p.scale_b)));
    plan->set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, static_cast<int32_t>(mode_of(p.scale_a)));
    // Vectors of scales must be there when algorithms are asked for; each call sets its own.
    const void* anywhere = workspace_;
    plan->set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, anywhere);
    plan->set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, anywhere);
  }
  if (p.has_bias) {
    plan->set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    plan->set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<int32_t>(type_of(p.bias)));
  }
  const auto u = [](int64_t n) { return static_cast<uint64_t>(n); };
  check(cublasLtMatrixLayoutCreate(&plan->a, type_of(p.b), u(p.transposed_b ? p.n : p.k), u(p.transposed_b ? p.k : p.n), p.ldb), "describe an operand");
  check(cublasLtMatrixLayoutCreate(&plan->b, type_of(p.a), u(p.transposed_a ? p.m : p.k), u(p.transposed_a ? p.k : p.m), p.lda), "describe an operand");
  check(cublasLtMatrixLayoutCreate(&plan->d, type_of(p.out), u(p.n), u(p.m), p.ldd), "describe a result");

  cublasLtMatmulPreference_t preference = nullptr;
  check(cublasLtMatmulPreferenceCreate(&preference), "state a preference");
  const size_t workspace = workspace_bytes;
  check(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace), "state a preference");
  const uint32_t alignment = p.alignment;   // cuBLASLt would assume 256
  for (const auto which : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
                           CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    check(cublasLtMatmulPreferenceSetAttribute(preference, which, &alignment, sizeof alignment), "state a preference");
  }
  std::array<cublasLtMatmulHeuristicResult_t, most_candidates> results{};
  int found = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(static_cast<cublasLtHandle_t>(handle_), plan->operation, plan->a, plan->b, plan->d, plan->d, preference, most_candidates,
                                                               results.data(), &found);
  cublasLtMatmulPreferenceDestroy(preference);
  for (int i = 0; i < found; ++i) {
    if (results[static_cast<size_t>(i)].state == CUBLAS_STATUS_SUCCESS) plan->candidates.push_back(results[static_cast<size_t>(i)].algo);
  }
  if (plan->candidates.empty()) {
    throw Error(ExitCode::device, fmt::format("cuBLASLt {} has no algorithm for the product {} ({})", cublasLtGetVersion(), describe(p), cublasLtGetStatusName(status)), "gemm",
                "update the CUDA toolkit, or choose another recipe for this module with precision.rules");
  }
  return plan;
}

GemmPlans::Plan& GemmPlans::plan_of(const GemmProblem& p) {
  auto& plan = plans_[p];
  if (!plan) {
    plan = make_plan(p);
    take_choice(*plan);
  }
  return *plan;
}

// The chosen algorithm of the plan's product, where there is a choice.
void GemmPlans::take_choice(Plan& plan) {
  const auto wanted = wanted_.find(describe(plan.problem));
  if (wanted == wanted_.end()) return;
  cublasLtMatmulAlgo_t algorithm{};
  static_assert(sizeof algorithm.data == sizeof(Algorithm));
  std::memcpy(algorithm.data, wanted->second.data(), sizeof(Algorithm));
  cublasLtMatmulHeuristicResult_t result{};
  const cublasStatus_t taken = cublasLtMatmulAlgoCheck(static_cast<cublasLtHandle_t>(handle_), plan.operation, plan.a, plan.b, plan.d, plan.d, &algorithm, &result);
  if (taken != CUBLAS_STATUS_SUCCESS || result.workspaceSize > workspace_bytes) {
    throw Error(ExitCode::device, fmt::format("the stored algorithm of the product {} is none of cuBLASLt {}", describe(plan.problem), cublasLtGetVersion()), "gemm",
                "resume with the CUDA toolkit that the run began with, or drop the stored choices with run.gemm_choice heuristic");
  }
  plan.candidates.assign(1, algorithm);
  plan.chosen = 0;
}

void GemmPlans::execute(const Plan& plan, size_t candidate, const GemmTerm& term, const MatrixView& out, const Tensor& bias, const float* alpha_beta) {
  const GemmProblem& p = plan.problem;
  if (p.scale_a != ScaleMode::none) {
    plan.set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, static_cast<const void*>(term.b.scale_inv.data));
    plan.set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, static_cast<const void*>(term.a.scale_inv.data));
  }
  if (p.has_bias) plan.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(bias.data));
  const float here[2] = {1.0f, p.accumulate ? 1.0f : 0.0f};
  const float* factors = alpha_beta ? alpha_beta : here;
  const cublasStatus_t status = cublasLtMatmul(static_cast<cublasLtHandle_t>(handle_), plan.operation, factors, term.b.data.data, plan.a, term.a.data.data, plan.b, factors + 1, out.data, plan.d,
                                               out.data, plan.d, &plan.candidates[candidate], workspace_, workspace_bytes, device_.stream());
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw Error(ExitCode::device, fmt::format("cuBLASLt refuses the product {}: {}", describe(p), cublasLtGetStatusName(status)), "gemm", "choose another recipe for this module with precision.rules");
  }
}

void GemmPlans::run(const GemmProblem& p, const GemmTerm& term, const MatrixView& out, const Tensor& bias, const float* alpha_beta) {
  OCTET_CHECK((p.scale_a == ScaleMode::nv_1x16) == (alpha_beta != nullptr), "gemm: alpha of the product {} is {} device memory", describe(p), alpha_beta ? "in" : "not in");
  const Plan& plan = plan_of(p);
  execute(plan, plan.chosen, term, out, bias, alpha_beta);
}

std::pair<int, int> GemmPlans::tune(void* memory, size_t bytes) {
  cudaEvent_t begin = nullptr, end = nullptr;
  cuda::check(cudaEventCreate(&begin), "make an event");
  cuda::check(cudaEventCreate(&end), "make an event");
  int timed = 0, too_large = 0;
  for (auto& [p, plan] : plans_) {
    const auto aligned = [](size_t n) { return (n + 255) / 256 * 256; };
    const auto extent = [&](int64_t rows, int64_t ld, bool transposed, Dtype d) { return aligned(static_cast<size_t>((transposed ? p.k : rows) * ld) * size_bytes(d)); };
    const size_t a = extent(p.m, p.lda, p.transposed_a, p.a), b = extent(p.n, p.ldb, p.transposed_b, p.b), d = aligned(static_cast<size_t>(p.m * p.ldd) * size_bytes(p.out));
    const size_t scales = aligned(static_cast<size_t>((p.m + p.n + 512) * (p.k / (p.scale_a == ScaleMode::nv_1x16 ? 64 : 128) + 4)) * sizeof(float));   // NVFP4: a byte for 16 codes
    if (plan->candidates.size() < 2 || plan->timed) continue;
    if (a + b + d + scales > bytes) {
      ++too_large;
      continue;
    }
    auto* at = static_cast<char*>(memory);
    // 0x3A3A is a normal number in every format, scales included: no zeros, which would run faster than data does.
    cuda::check(cudaMemsetAsync(at, 0x3A, a + b + d + scales, device_.stream()), "fill operands");
    GemmTerm term;
    term.a.data.data = at;
    term.b.data.data = at + a;
    term.a.scale_inv.data = term.b.scale_inv.data = at + a + b + d;
    MatrixView out;
    out.data = at + a + b;
    Tensor bias;
    bias.data = term.a.scale_inv.data;
    // NVFP4's alpha and beta lie behind the scales of the larger operand.
    float* alpha_beta = nullptr;
    if (p.scale_a == ScaleMode::nv_1x16) {
      const float values[2] = {1.0f, p.accumulate ? 1.0f : 0.0f};
      alpha_beta = reinterpret_cast<float*>(at + a + b + d + scales) - 2;
      device_.copy_in(alpha_beta, values, sizeof values);
    }
    float best = 0;
    for (size_t candidate = 0; candidate < plan->candidates.size(); ++candidate) {
      constexpr int rounds = 3;
      try {
        execute(*plan, candidate, term, out, bias, alpha_beta);   // loads the kernel
      } catch (const Error&) {
        continue;   // a candidate of the heuristic that is refused after all; the others are tried
      }
      cuda::check(cudaEventRecord(begin, device_.stream()), "record an event");
      for (int i = 0; i < rounds; ++i) execute(*plan, candidate, term, out, bias, alpha_beta);
      cuda::check(cudaEventRecord(end, device_.stream()), "record an event");
      cuda::check(cudaEventSynchronize(end), "time a product");
      float ms = 0;
      cuda::check(cudaEventElapsedTime(&ms, begin, end), "time a product");
      if (best == 0 || ms < best) {
        best = ms;
        plan->chosen = candidate;
      }
    }
    plan->timed = true;
    ++timed;
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return {timed, too_large};
}

std::map<std::string, GemmPlans::Algorithm> GemmPlans::choices() const {
  std::map<std::string, Algorithm> out = wanted_;
  for (const auto& [p, plan] : plans_) std::memcpy(out[describe(p)].data(), plan->candidates[plan->chosen].data, sizeof(Algorithm));
  return out;
}

size_t GemmPlans::library_version() { return cublasLtGetVersion(); }

void GemmPlans::choose(const std::map<std::string, Algorithm>& choices) {
  wanted_ = choices;
  for (auto& [p, plan] : plans_) take_choice(*plan);
}

void Device::Release::operator()(GemmPlans* p) const { delete p; }

GemmPlans& Device::gemm_plans() {
  if (!gemm_plans_) gemm_plans_.reset(new GemmPlans(*this));
  return *gemm_plans_;
}

}  // namespace octet::cuda
