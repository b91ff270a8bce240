// AdamW (Loshchilov and Hutter, arXiv 1711.05101) on FP32 masters, with the BF16 working copy written in the same pass, and the decision whether to step.
//
//   g  = grad * grad_scale                        (clipping)
//   m  = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
//   w  = w - lr * weight_decay * w - lr * (m / bias1) / (sqrt(v / bias2) + eps),   bias_i = 1 - beta_i^t
// FP32 throughout, every product explicitly rounded or fused as written in numerics/adamw.h: both backends give the same bits.
#pragma once
#include "numerics/adamw.h"
#include "ops/quantize.h"
#include "ops/step_control.h"

namespace octet {

// The state of one parameter, or of some of its rows, all of one shape.
struct AdamwTensors {
  Tensor master;      // f32; or empty, and
  Tensor remainder;   // u16: masters are `working` and these lower halves (numerics/master.h)
  Tensor m, v;        // both f32, or both bf16: rounded stochastically, one random word an element (lower half for m, upper for v), keyed by seed, step, name
  Tensor grad;        // f32
  Tensor working;     // bf16; empty when masters are the working weights
  int64_t first_element = 0;   // the place of the first one here in its parameter, for random words: a multiple of 8
};

namespace ops {

// control: device memory. name_hash: fnv1a64 of the parameter's name, used by BF16 moments. The state is not touched when control->skip.
// images: of the weights [rows, cols] that the step leaves (the working copy, or masters that have none), written also when it is skipped.
void adamw(Ctx& ctx, const AdamwTensors& t, const AdamwStep& step, uint64_t name_hash, const StepControl* control, const QuantizedOut& images = {});
// Skips when the loss, the norm or a quantized element is not finite; grad_scale = min(1, clip_norm / (norm + 1e-6)), as Megatron-LM and PyTorch, 1 when clip_norm
// is 0. outcome: device memory.
void decide_step(Ctx& ctx, const StepInputs& inputs, StepOutcome* outcome);
// working = RNE(master).
void cast_weights(Ctx& ctx, const Tensor& master, const Tensor& working);

}  // namespace ops
}  // namespace octet
