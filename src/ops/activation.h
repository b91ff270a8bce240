// SwiGLU (Shazeer, arXiv 2002.05202): y = silu(gate) * up, silu(g) = g / (1 + exp(-g)), computed in FP32 and rounded once.
#pragma once
#include "ops/quantize.h"

namespace octet::ops {

// gate_up: [T, 2 I], gate columns first; y: [T, I] or empty; images of the rounded y.
void swiglu_quantize(Ctx& ctx, const Tensor& gate_up, const Tensor& y, const QuantizedOut& images);

// dy: [T, I]; d_gate_up: [T, 2 I] or empty; images of its rounded halves, each a matrix [T, I] of its own: wanted of both halves or of neither.
void swiglu_backward(Ctx& ctx, const Tensor& dy, const Tensor& gate_up, const Tensor& d_gate_up, const QuantizedOut& gate_images, const QuantizedOut& up_images);

}  // namespace octet::ops
