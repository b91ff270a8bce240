// AdamW over all parameters of a model, with global-norm clipping. Decay groups: matrices decay, norms and biases do not.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "model/param.h"
#include "core/context.h"

namespace octet {

struct GradientNorm {
  double norm = 0;               // Euclidean norm over all gradients, before clipping; NaN or Inf when one of them is
  std::string first_nonfinite;   // parameter whose gradient was the first to be non-finite in the backward pass
};

GradientNorm gradient_norm(Ctx& ctx, const std::vector<std::unique_ptr<Param>>& params);

// min(1, clip_norm / (norm + 1e-6)), as Megatron-LM and PyTorch; 1 when clip_norm is 0.
float clip_factor(double clip_norm, double norm);

// update: number of this update, from 1 (bias correction). lr: of this step.
void adamw_update(Ctx& ctx, const std::vector<std::unique_ptr<Param>>& params, const OptimConfig& optim, double lr, int64_t update, float grad_scale);

}  // namespace octet
