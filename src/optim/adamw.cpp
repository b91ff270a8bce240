#include "optim/adamw.h"

#include <cmath>

#include "core/philox.h"
#include "ops/reduce.h"

namespace octet {

void gradient_squares(Ctx& ctx, const std::vector<std::unique_ptr<Param>>& params, double* squares) {
  std::vector<Tensor> grads;
  for (const auto& p : params) grads.push_back(p->copy == 0 ? p->own_grad : Tensor{nullptr, Dtype::f32, {0}});
  ops::sum_squares(ctx, grads, squares);
}

void adamw_update(Ctx& ctx, const std::vector<std::unique_ptr<Param>>& params, const OptimConfig& optim, double lr, int64_t update, const StepControl* control,
                  const WeightImages& images) {
  const auto f = [](double x) { return static_cast<float>(x); };
  const auto t = static_cast<double>(update);
  const AdamwStep step{f(lr), f(optim.beta1), f(optim.beta2), f(optim.eps), f(optim.weight_decay), f(1.0 / (1.0 - std::pow(optim.beta1, t))), f(1.0 / (1.0 - std::pow(optim.beta2, t)))};
  std::vector<AdamwUpdate> together;
  for (const auto& p : params) {
    if (p->own_elements() == 0) continue;
    const bool separate_copy = p->working.dtype == Dtype::bf16;
    const AdamwUpdate u{{p->master, p->remainder, p->exp_avg, p->exp_avg_sq, p->own_grad, separate_copy ? p->own_working : Tensor{}, p->place(p->own.first)}, p->decay ? step.weight_decay : 0.0f, fnv1a64(p->name)};
    const auto image = images.find(p.get());
    if (image != images.end() && image->second.wanted()) {
      ops::adamw_quantize(ctx, u, step, control, image->second);
    } else {
      together.push_back(u);
    }
  }
  ops::adamw(ctx, together, step, control);
}

}  // namespace octet
