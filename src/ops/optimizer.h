// AdamW (Loshchilov and Hutter, arXiv 1711.05101) on FP32 masters, with the BF16 working copy written in the same pass, and the decision whether to step.
//
//   g  = grad * grad_scale                        (clipping)
//   m  = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
//   w  = w - lr * weight_decay * w - lr * (m / bias1) / (sqrt(v / bias2) + eps),   bias_i = 1 - beta_i^t
// FP32 throughout, every product explicitly rounded or fused as written in numerics/adamw.h: both backends give the same bits.
#pragma once
#include <span>

#include "core/place.h"
#include "numerics/adamw.h"
#include "ops/quantize.h"
#include "ops/step_control.h"

namespace octet {

// The state of one parameter, or of some of its rows or columns, all of one shape.
struct AdamwTensors {
  Tensor master;      // f32; or empty, and
  Tensor remainder;   // u16: masters are `working` and these lower halves (numerics/master.h)
  Tensor m, v;        // both f32, or both bf16: rounded stochastically, one random word an element (lower half for m, upper for v), keyed by seed, step, name
  Tensor grad;        // f32
  Tensor working;     // bf16; empty when masters are the working weights
  MatrixPlace place{};   // in the parameter: random words are those of the element there. A vector is one row
};

// One parameter's part of an update.
struct AdamwUpdate {
  AdamwTensors tensors;
  float weight_decay = 0;    // in the place of the step's
  uint64_t name_hash = 0;    // fnv1a64 of the parameter's name, used by BF16 moments
};

namespace ops {

// Updates all of them, in any order: no two share memory. control: device memory. The state is not touched when control->skip. Forms may differ from one to the next,
// and any of them may have no elements. On a GPU a launch serves as many tensors of one form as its arguments hold; places whose rows begin at multiples of 8 in the
// whole, and whole rows, are the fast ones there.
void adamw(Ctx& ctx, std::span<const AdamwUpdate> updates, const AdamwStep& step, const StepControl* control);
// One update, and the images of the weights [rows, cols] that it leaves (the working copy, or masters that have none), written also when it is skipped.
void adamw_quantize(Ctx& ctx, const AdamwUpdate& update, const AdamwStep& step, const StepControl* control, const QuantizedOut& images);
// Skips when the loss, the norm or a quantized element is not finite; grad_scale = min(1, clip_norm / (norm + 1e-6)), as Megatron-LM and PyTorch, 1 when clip_norm
// is 0. outcome: device memory.
void decide_step(Ctx& ctx, const StepInputs& inputs, StepOutcome* outcome);
// working = RNE(master).
void cast_weights(Ctx& ctx, const Tensor& master, const Tensor& working);

}  // namespace ops
}  // namespace octet
