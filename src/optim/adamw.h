// AdamW over all parameters of a model, with global-norm clipping (ops::decide_step has the formula). Decay groups: matrices decay, norms and biases do not.
#pragma once
#include <memory>
#include <vector>

#include "config/run_config.h"
#include "model/linear.h"
#include "ops/optimizer.h"

namespace octet {

// squares[i] += sum of the squared gradients of parameter i's own rows, on the first of the ranks of tp that have the same; device memory.
void gradient_squares(Ctx& ctx, const std::vector<std::unique_ptr<Param>>& params, double* squares);

// update: number of this update, from 1 (bias correction). lr: of this step. control: device memory, from ops::decide_step. images: made of the new weights in the
// same pass, by parameter: those parameters one by one, all others in one call.
void adamw_update(Ctx& ctx, const std::vector<std::unique_ptr<Param>>& params, const OptimConfig& optim, double lr, int64_t update, const StepControl* control,
                  const WeightImages& images = {});

}  // namespace octet
