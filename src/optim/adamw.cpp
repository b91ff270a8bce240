#include "optim/adamw.h"

#include <cmath>

#include "core/philox.h"
#include "ops/reduce.h"

namespace octet {

void gradient_squares(Ctx& ctx, const std::vector<std::unique_ptr<Param>>& params, double* squares) {
  for (size_t i = 0; i < params.size(); ++i) ops::sum_squares(ctx, params[i]->own_grad, squares ? squares + i : nullptr);
}

void adamw_update(Ctx& ctx, const std::vector<std::unique_ptr<Param>>& params, const OptimConfig& optim, double lr, int64_t update, const StepControl* control,
                  const WeightImages& images) {
  const auto f = [](double x) { return static_cast<float>(x); };
  const auto t = static_cast<double>(update);
  AdamwStep step{f(lr), f(optim.beta1), f(optim.beta2), f(optim.eps), 0.0f, f(1.0 / (1.0 - std::pow(optim.beta1, t))), f(1.0 / (1.0 - std::pow(optim.beta2, t)))};
  for (const auto& p : params) {
    step.weight_decay = p->decay ? f(optim.weight_decay) : 0.0f;
    const auto image = images.find(p.get());
    if (p->own_elements() == 0) continue;
    const bool separate_copy = p->working.dtype == Dtype::bf16;
    ops::adamw(ctx, {p->master, p->remainder, p->exp_avg, p->exp_avg_sq, p->own_grad, separate_copy ? p->own_working : Tensor{}, p->own.first * p->row_elements()}, step, fnv1a64(p->name), control,
               image != images.end() ? image->second : QuantizedOut{});
  }
}

}  // namespace octet
