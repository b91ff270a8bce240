#include "optim/partial_gradients.h"

#include "core/trace.h"

namespace octet {

PartialGradients::PartialGradients(const Mesh& mesh, const std::vector<std::unique_ptr<Param>>& params) : mesh_(mesh) {
  for (const auto& p : params) {
    if (p->tp_gradient == TpGradient::sum_tp) of_tp_.push_back(p.get());
    if (p->tp_gradient == TpGradient::sum_kv) of_kv_.push_back(p.get());
  }
}

void PartialGradients::sum(Tracer* tracer) const {
  Span span(tracer, "gradients", "sum over tp");
  const auto start = [](Comm* group, const std::vector<const Param*>& params) -> Comm::Ticket {
    std::vector<Tensor> own;
    for (const Param* p : params) own.push_back(p->own_grad);
    return own.empty() ? 0 : group->all_reduce(own, Reduce::sum);
  };
  const Comm::Ticket tp = start(mesh_.tp(), of_tp_), kv = start(mesh_.kv(), of_kv_);
  if (tp) mesh_.tp()->wait(tp);
  if (kv) mesh_.kv()->wait(kv);
}

}  // namespace octet
