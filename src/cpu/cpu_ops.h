// The CPU backend: the reference. Contracts are in ops/*.h; arguments were checked by ops/dispatch.cpp.
#pragma once
#include <span>

#include "ops/gemm.h"
#include "ops/norm.h"
#include "ops/optimizer.h"
#include "ops/quantize.h"
#include "ops/rope.h"

namespace octet::cpu {

void quantize(Ctx& ctx, const MatrixView& x, const QuantizedOut& out);
void shared_amaxes(Ctx& ctx, const MatrixView& x, const QuantSpec& spec, bool column, const Tensor& amax);
void dequantize(Ctx& ctx, const Operand& image, const MatrixView& out);
void gemm(Ctx& ctx, std::span<const GemmTerm> terms, const MatrixView& out, float beta, Accumulate accumulate, const Tensor& bias);
void rmsnorm_quantize(Ctx& ctx, const Tensor& x, const Tensor& delta, const Tensor& gamma, float eps, const RmsNormOut& out);
void rmsnorm_backward(Ctx& ctx, const Tensor& dy, const Tensor& s, const Tensor& gamma, const Tensor& rstd, const Tensor& d_residual, const Tensor& dx,
                      const Tensor& dgamma);
void swiglu_quantize(Ctx& ctx, const Tensor& gate_up, const Tensor& y, const QuantizedOut& images);
void swiglu_backward(Ctx& ctx, const Tensor& dy, const Tensor& gate_up, const Tensor& d_gate_up, const QuantizedOut& gate_images, const QuantizedOut& up_images);
void qk_norm_rope(Ctx& ctx, const Tensor& qkv, const Tensor& positions, const Tensor& cos_sin, const HeadGeometry& g, const QkNorm& norm, const Tensor& out);
void qk_norm_rope_backward(Ctx& ctx, const Tensor& d_out, const Tensor& qkv, const Tensor& positions, const Tensor& cos_sin, const HeadGeometry& g,
                           const QkNorm& norm, const Tensor& d_qkv);
void attention(Ctx& ctx, const Tensor& qkv, const Tensor& document_start, int64_t seq_len, const HeadGeometry& g, const Tensor& out, const Tensor& lse,
               const QuantizedOut& images);
void attention_backward(Ctx& ctx, const Tensor& d_out, const Tensor& qkv, const Tensor& out, const Tensor& lse, const Tensor& document_start, int64_t seq_len,
                        const HeadGeometry& g, const Tensor& d_qkv);
void embedding(Ctx& ctx, const Tensor& table, const Tensor& tokens, const Tensor& out, int64_t first_row);
void embedding_backward(Ctx& ctx, const Tensor& d_out, const Tensor& tokens, const Tensor& d_table, int64_t first_row);
void cross_entropy(Ctx& ctx, const Tensor& logits, const Tensor& labels, int64_t vocab, float z_coefficient, const float* grad_scale, const Tensor& loss, const Tensor& z);
void softmax_parts(Ctx& ctx, const Tensor& logits, const Tensor& labels, int64_t first, int64_t columns, const Tensor& parts);
void cross_entropy_of_parts(Ctx& ctx, const Tensor& logits, const Tensor& labels, int64_t first, int64_t columns, const Tensor& parts, float z_coefficient,
                            const float* grad_scale, const Tensor& loss, const Tensor& z);
void sum(Ctx& ctx, const Tensor& x, double* total);
void sum_squares(Ctx& ctx, std::span<const Tensor> x, double* totals);
void column_sums(Ctx& ctx, const MatrixView& dy, const Tensor& d_bias);
void zero(Ctx& ctx, const Tensor& x);
void copy(Ctx& ctx, const Tensor& from, const Tensor& to);
void add(Ctx& ctx, const Tensor& from, const Tensor& to);
void transpose(Ctx& ctx, const MatrixView& from, const MatrixView& to);
void join_columns(Ctx& ctx, const MatrixView& parts, const MatrixView& whole);
void narrow_scales(Ctx& ctx, const Tensor& scale_inv, const Tensor& codes);
void widen_scales(Ctx& ctx, const Tensor& codes, const Tensor& scale_inv);
void adamw(Ctx& ctx, std::span<const AdamwUpdate> updates, const AdamwStep& step, const StepControl* control);
void adamw_quantize(Ctx& ctx, const AdamwUpdate& update, const AdamwStep& step, const StepControl* control, const QuantizedOut& images);
void decide_step(Ctx& ctx, const StepInputs& inputs, StepOutcome* outcome);
void cast_weights(Ctx& ctx, const Tensor& master, const Tensor& working);

// Start-up self-test of the BLAS behind gemm: right results, one thread a call, and not the reference implementation.
// Returns its measured speed in GFLOP/s; throws Error(config) naming the library when it is unusable.
double blas_self_test();

}  // namespace octet::cpu
