// Every operator of dispatch.cpp once more, for contexts with a shadow: on both devices, compared. With the CUDA backend only.
//
// What an operator reads and writes, and how closely its results must agree, stands here alone; the tolerances are those of tests/parity
// (docs/reference/shadow.md lists them). An operator without its function here does not compile in dispatch.cpp.
#pragma once
#include "cpu/cpu_ops.h"

namespace octet::shadow {

// Of the signatures of their backends.
decltype(cpu::quantize) quantize;
decltype(cpu::shared_amaxes) shared_amaxes;
decltype(cpu::dequantize) dequantize;
decltype(cpu::gemm) gemm;
decltype(cpu::rmsnorm_quantize) rmsnorm_quantize;
decltype(cpu::rmsnorm_backward) rmsnorm_backward;
decltype(cpu::swiglu_quantize) swiglu_quantize;
decltype(cpu::swiglu_backward) swiglu_backward;
decltype(cpu::qk_norm_rope) qk_norm_rope;
decltype(cpu::qk_norm_rope_backward) qk_norm_rope_backward;
decltype(cpu::attention) attention;
decltype(cpu::attention_backward) attention_backward;
decltype(cpu::embedding) embedding;
decltype(cpu::embedding_backward) embedding_backward;
decltype(cpu::cross_entropy) cross_entropy;
decltype(cpu::softmax_parts) softmax_parts;
decltype(cpu::cross_entropy_of_parts) cross_entropy_of_parts;
decltype(cpu::sum) sum;
decltype(cpu::sum_squares) sum_squares;
decltype(cpu::column_sums) column_sums;
decltype(cpu::zero) zero;
decltype(cpu::copy) copy;
decltype(cpu::add) add;
decltype(cpu::transpose) transpose;
decltype(cpu::join_columns) join_columns;
decltype(cpu::narrow_scales) narrow_scales;
decltype(cpu::widen_scales) widen_scales;
decltype(cpu::adamw) adamw;
decltype(cpu::adamw_quantize) adamw_quantize;
decltype(cpu::decide_step) decide_step;
decltype(cpu::cast_weights) cast_weights;

}  // namespace octet::shadow
