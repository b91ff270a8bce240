#include "optim/partial_gradients.h"

#include "core/trace.h"

namespace octet {

PartialGradients::PartialGradients(const Mesh& mesh, const std::vector<std::unique_ptr<Param>>& params) : mesh_(mesh) {
  for (const auto& p : params) {
    if (p->tp_gradient == TpGradient::sum_tp) params_.push_back(p.get());
  }
}

void PartialGradients::sum(Tracer* tracer) const {
  if (params_.empty()) return;
  Span span(tracer, "gradients", "sum over tp");
  std::vector<Tensor> own;
  for (const Param* p : params_) own.push_back(p->own_grad);
  mesh_.tp()->wait(mesh_.tp()->all_reduce(own, Reduce::sum));
}

}  // namespace octet
