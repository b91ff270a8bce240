#include "optim/adamw.h"

#include <algorithm>
#include <cmath>

#include "ops/optimizer.h"
#include "ops/reduce.h"

namespace octet {

GradientNorm gradient_norm(Ctx& ctx, const std::vector<std::unique_ptr<Param>>& params) {
  GradientNorm g;
  double total = 0;
  for (const auto& p : params) {
    const double squares = ops::sum_squares(ctx, p->grad);
    // Gradients flow from the last parameter to the first: the last one listed was hit first.
    if (!std::isfinite(squares)) g.first_nonfinite = p->name;
    total += squares;
  }
  g.norm = std::sqrt(total);
  return g;
}

float clip_factor(double clip_norm, double norm) {
  if (clip_norm <= 0) return 1.0f;
  return static_cast<float>(std::min(1.0, clip_norm / (norm + 1e-6)));
}

void adamw_update(Ctx& ctx, const std::vector<std::unique_ptr<Param>>& params, const OptimConfig& optim, double lr, int64_t update, float grad_scale) {
  const auto f = [](double x) { return static_cast<float>(x); };
  const auto t = static_cast<double>(update);
  AdamwStep step{f(lr),
                 f(optim.beta1),
                 f(optim.beta2),
                 f(optim.eps),
                 0.0f,
                 f(1.0 / (1.0 - std::pow(optim.beta1, t))),
                 f(1.0 / (1.0 - std::pow(optim.beta2, t))),
                 grad_scale};
  for (const auto& p : params) {
    step.weight_decay = p->decay ? f(optim.weight_decay) : 0.0f;
    const bool separate_copy = p->working.dtype == Dtype::bf16;
    ops::adamw(ctx, p->master, p->exp_avg, p->exp_avg_sq, p->grad, separate_copy ? p->working : Tensor{}, step);
  }
}

}  // namespace octet
