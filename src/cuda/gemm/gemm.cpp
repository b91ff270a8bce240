// ops::gemm on the device: native products through GemmPlans, others on decoded BF16 copies; several terms are summed in FP32 and rounded once.
#include <fmt/format.h>

#include "cuda/cuda_ops.h"
#include "cuda/device.h"
#include "cuda/gemm/plans.h"
#include "cuda/kernels/block_scales.h"
#include "cuda/kernels/state.h"

namespace octet::cuda {
namespace {

// The operand as BF16 values, from scratch memory.
Operand decoded(Ctx& ctx, const Operand& o) {
  const Operand plain = Operand::plain(ctx.scratch().alloc(Dtype::bf16, {o.data.rows, o.data.cols}), o.transposed);
  dequantize(ctx, o, plain.data);
  return plain;
}

// A term as cuBLASLt multiplies it; alpha and beta where they are in device memory.
struct Native {
  GemmTerm term;
  float* alpha_beta = nullptr;
};

// The operand with its scales in tiles and E2M1 codes two a byte, from scratch memory. fit: of NVFP4.
Operand tiled(Ctx& ctx, const Operand& o, TwoLevelFit* fit) {
  const bool fp4 = o.data.dtype == Dtype::e2m1;
  Operand out = o;
  out.scale_inv = ctx.scratch().alloc(fp4 ? Dtype::e4m3 : Dtype::e8m0, {tiled_scale_bytes(o.rows(), o.scale_inv.cols())});
  if (fp4) {
    out.data.data = ctx.scratch().alloc(Dtype::u8, {o.rows(), o.k() / 2}).data;
    out.data.ld = o.k();
  }
  if (ctx.planning()) return out;
  CUstream_st* stream = ctx.cuda().stream();
  launch_scale_tiles(stream, {o.scale_inv.as<float>(), o.scale_row_stride, o.scale_col_stride, o.scale_inv.rows(), o.scale_inv.cols(), o.rows(), o.block_rows, out.scale_inv.as<uint8_t>(), fit});
  if (fp4) launch_pack_e2m1(stream, static_cast<const uint8_t*>(o.data.data), o.data.ld, o.rows(), o.k(), static_cast<uint8_t*>(out.data.data));
  return out;
}

Native tiled_term(Ctx& ctx, const GemmTerm& term, float beta) {
  if (term.a.data.dtype != Dtype::e2m1) return {{tiled(ctx, term.a, nullptr), tiled(ctx, term.b, nullptr)}};
  TwoLevelFit* fits[2] = {ctx.scratch().alloc_array<TwoLevelFit>(1), ctx.scratch().alloc_array<TwoLevelFit>(1)};
  const Native native{{tiled(ctx, term.a, fits[0]), tiled(ctx, term.b, fits[1])}, ctx.scratch().alloc_array<float>(2)};
  if (!ctx.planning()) launch_two_level_alpha(ctx.cuda().stream(), fits[0], fits[1], beta, native.alpha_beta);
  return native;
}

Native native_term(Ctx& ctx, const GemmTerm& term, const MatrixView& out, float beta, Accumulate accumulate) {
  const GemmProblem problem = problem_of(term, out, 0.0f, accumulate, {});
  if (!why_emulated(problem, ctx.capability).empty()) return {{decoded(ctx, term.a), decoded(ctx, term.b)}};
  if (const std::string why = why_refused(problem); !why.empty()) {
    throw Error(ExitCode::config, fmt::format("the product {} is not possible: {}", describe(problem), why), "gemm",
                "change the model's extents or the number of tokens, or choose another recipe for this module with precision.rules");
  }
  return is_tiled(problem.scale_a) ? tiled_term(ctx, term, beta) : Native{term};
}

void multiply(Ctx& ctx, const GemmTerm& term, const MatrixView& out, float beta, Accumulate accumulate, const Tensor& bias) {
  Arena::Scope scope(ctx.scratch());
  const Native native = native_term(ctx, term, out, beta, accumulate);
  if (!ctx.planning() && out.elements() != 0) ctx.cuda().gemm_plans().run(problem_of(native.term, out, beta, accumulate, bias), native.term, out, bias, native.alpha_beta);
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
