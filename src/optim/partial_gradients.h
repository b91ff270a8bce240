// PartialGradients: gradients of which the ranks of tp have addends (TpGradient): of norms whose tokens or heads are cut. Summed once a
// step, behind the sums over the data-parallel ranks, of the own rows.
#pragma once
#include <vector>

#include "comm/mesh.h"
#include "model/param.h"

namespace octet {

class Tracer;

class PartialGradients {
 public:
  // mesh and parameters outlive it.
  PartialGradients(const Mesh& mesh, const std::vector<std::unique_ptr<Param>>& params);
  // The own rows of all of them are sums then: one operation. tracer: where its span goes.
  void sum(Tracer* tracer) const;

 private:
  const Mesh& mesh_;
  std::vector<const Param*> params_;
};

}  // namespace octet
