// Pass: one traversal of the model over one micro-batch, and what every layer needs to know about it.
#pragma once
#include "core/context.h"
#include "model/dump.h"
#include "recipe/quant_registry.h"

namespace octet {

struct UnitHooks;   // model/unit.h

struct Pass {
  Ctx& ctx;
  QuantRegistry& quant;
  Arena& saved;               // activations kept from forward to backward
  double* loss_sums = nullptr;   // [2] in the memory of the device: sums over valid tokens of cross-entropy and of z-loss, added to
  bool statistics = true;     // stage amaxes and count; off for validation and for recomputation
  bool backward = true;       // one follows, which reads what is kept
  Dump* dump = nullptr;
  int64_t micro_batch = 0;    // of the step, from 0
  // The first micro-batch's weight gradients are written, the others' added to them; where each micro-batch's go elsewhere (ZeRO 2, 3), all are written.
  bool separate_gradients = false;
  const UnitHooks* hooks = nullptr;   // null: nobody listens

  bool writes_gradients() const { return micro_batch == 0 || separate_gradients; }

  QuantTarget target(int site) const { return statistics ? quant.target(site) : quant.silent_target(site); }
  void count(int site, const QuantSpec& spec, int64_t elements) const {
    if (statistics && !ctx.planning() && spec.quantized()) quant.count(site, spec.format, elements);
  }
  // Whether this pass collects the module's tensors (memory for them is planned), and whether there is data to collect now.
  bool dumps(const std::string& module) const { return dump && dump->wants(module); }
  bool writes_dump(const std::string& module) const { return dumps(module) && !ctx.planning(); }
  // The same traversal keeping its results elsewhere.
  Pass with_saved(Arena& arena) const { return {ctx, quant, arena, loss_sums, statistics, backward, dump, micro_batch, separate_gradients, hooks}; }
  // The same traversal while recomputing: results are identical, nothing is counted or dumped twice, and memory is temporary.
  Pass recomputing() const {
    Pass p = with_saved(ctx.scratch());
    p.statistics = false;
    p.dump = nullptr;
    return p;
  }
};

}  // namespace octet
