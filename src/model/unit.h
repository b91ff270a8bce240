// Units: the parts of a model whose weights are used together: the embedding, each layer, the head. Data parallelism moves weights and gradients unit by unit
// beside the work of others; the traversals of the model say where they are (Pass::hooks).
#pragma once
#include <cstddef>
#include <functional>
#include <optional>
#include <vector>

#include "model/linear.h"

namespace octet {

struct Unit {
  std::vector<Param*> params;
  std::vector<Linear*> linears;     // whose weights are among them
  // Units of one slot take turns: no two of them are needed at a time, so that one memory can serve both. Layers have two slots, so that the next one's
  // weights can come, and the previous one's gradients go, while a layer computes.
  int slot = 0;
};
constexpr int unit_slots = 3;

// Called in the order of the traversal; empty functions are not called.
struct UnitHooks {
  // Its weights and their images are about to be read, and after them those of unit `next`; none: not in this traversal.
  std::function<void(size_t unit, std::optional<size_t> next)> weights;
  std::function<void(size_t unit)> backward;    // its gradients are about to be written
  std::function<void(size_t unit)> gradients;   // its gradients of this micro-batch are complete
};

}  // namespace octet
