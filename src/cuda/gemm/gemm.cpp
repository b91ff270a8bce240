// ops::gemm on the device: native products through GemmPlans, others on decoded BF16 copies; several terms are summed in FP32 and rounded once.
#include <fmt/format.h>

#include "cuda/cuda_ops.h"
#include "cuda/device.h"
#include "cuda/gemm/plans.h"
#include "cuda/kernels/state.h"

namespace octet::cuda {
namespace {

// The operand as BF16 values, from scratch memory.
Operand decoded(Ctx& ctx, const Operand& o) {
  const Operand plain = Operand::plain(ctx.scratch().alloc(Dtype::bf16, {o.data.rows, o.data.cols}), o.transposed);
  dequantize(ctx, o, plain.data);
  return plain;
}

GemmTerm native_term(Ctx& ctx, const GemmTerm& term, const MatrixView& out, Accumulate accumulate) {
  const GemmProblem problem = problem_of(term, out, 0.0f, accumulate, {});
  if (!why_emulated(problem, ctx.capability).empty()) return {decoded(ctx, term.a), decoded(ctx, term.b)};
  if (const std::string why = why_refused(problem); !why.empty()) {
    throw Error(ExitCode::config, fmt::format("the product {} is not possible: {}", describe(problem), why), "gemm",
                "change the model's extents or the number of tokens, or choose another recipe for this module with precision.rules");
  }
  return term;
}

void multiply(Ctx& ctx, const GemmTerm& term, const MatrixView& out, float beta, Accumulate accumulate, const Tensor& bias) {
  Arena::Scope scope(ctx.scratch());
  const GemmTerm native = native_term(ctx, term, out, accumulate);
  if (!ctx.planning() && out.elements() != 0) ctx.cuda().gemm_plans().run(problem_of(native, out, beta, accumulate, bias), native, out, bias);
}

}  // namespace

void gemm(Ctx& ctx, std::span<const GemmTerm> terms, const MatrixView& out, float beta, Accumulate accumulate, const Tensor& bias) {
  Arena::Scope scope(ctx.scratch());
  const bool through_f32 = terms.size() > 1 && out.dtype != Dtype::f32;
  OCTET_CHECK(terms.size() == 1 || bias.shape.rank() == 0, "gemm: a bias with {} terms", terms.size());
  OCTET_CHECK(!through_f32 || out.ld == out.cols, "gemm: {} terms into rows {} apart, {} columns", terms.size(), out.ld, out.cols);
  const MatrixView sum = through_f32 ? MatrixView(ctx.scratch().alloc(Dtype::f32, {out.rows, out.cols})) : out;
  for (size_t i = 0; i < terms.size(); ++i) multiply(ctx, terms[i], sum, i == 0 ? beta : 1.0f, accumulate, bias);
  if (through_f32 && !ctx.planning() && out.elements() != 0) {
    launch_cast(ctx.cuda().stream(), static_cast<const float*>(sum.data), static_cast<uint16_t*>(out.data), out.elements());
  }
}

}  // namespace octet::cuda
