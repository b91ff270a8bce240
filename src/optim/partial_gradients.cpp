#include "optim/partial_gradients.h"

#include "core/trace.h"
#include "ops/reduce.h"

namespace octet {

PartialGradients::PartialGradients(const Mesh& mesh, const std::vector<std::unique_ptr<Param>>& params) : mesh_(mesh) {
  for (const auto& p : params) {
    if (p->tp_gradient == TpGradient::sum_tp) of_tp_.push_back(p.get());
    if (p->tp_gradient == TpGradient::sum_kv) of_kv_.push_back(p.get());
  }
}

void PartialGradients::sum(Ctx& ctx) const {
  if (of_tp_.empty() && of_kv_.empty()) return;
  Span span(ctx.tracer, "gradients", "sum over tp");
  Comm::Ticket kv = 0;
  for (const Param* p : of_kv_) {
    if (!ctx.planning() && p->own_elements() > 0) kv = mesh_.kv()->all_reduce(p->own_grad, Reduce::sum);
  }
  int64_t elements = 0;
  for (const Param* p : of_tp_) elements += p->own_elements();
  if (elements > 0) {
    Arena::Scope scope(ctx.scratch());
    const Tensor all = ctx.scratch().alloc(Dtype::f32, {elements});
    const auto part = [&](int64_t first, const Param& p) { return Tensor{all.data ? all.as<float>() + first : nullptr, Dtype::f32, p.own_grad.shape}; };
    int64_t first = 0;
    for (const Param* p : of_tp_) {
      ops::copy(ctx, p->own_grad, part(first, *p));
      first += p->own_elements();
    }
    if (!ctx.planning()) mesh_.tp()->wait(mesh_.tp()->all_reduce(all, Reduce::sum));
    first = 0;
    for (const Param* p : of_tp_) {
      ops::copy(ctx, part(first, *p), p->own_grad);
      first += p->own_elements();
    }
  }
  if (kv) mesh_.kv()->wait(kv);
}

}  // namespace octet
