// DataParallel: what data-parallel ranks do with a model's gradients, weights and optimizer state. ZeRO (Rajbhandari et al., arXiv 1910.02054) in the config's terms:
//
//   zero 0   every rank keeps everything; gradients are summed, and every rank makes the same update
//   zero 1   masters and moments are cut into shards of rows; each rank sums the gradients of its rows, updates those, and gathers the others' working weights
//   zero 2   gradients too: each micro-batch's are written to memory that units share (Unit::slot), summed at once, and the own rows added to what is kept
//   zero 3   working weights and their images too: gathered unit by unit, for forward and again for backward
// Shards are whole 128-row groups of each tensor, so that no block of a recipe lies in two of them. With replicas (parallel.dp_replicate) the shards' sums are
// summed over them before the update.
//
// With tensor parallelism all of this is of this rank's part of each matrix, among the ranks that have the same part; gradients that are addends over the ranks of tp are summed over those then.
//
// What moves, moves beside the work of other units (parallel.overlap; the same bits without): gradients of a unit while earlier units compute theirs, weights of a
// unit while the one before it computes. One operation moves a unit's tensors of one type. The hooks are called by the model's traversals (model/unit.h).
#pragma once
#include <array>
#include <map>
#include <optional>
#include <vector>

#include "comm/mesh.h"
#include "model/model.h"
#include "optim/partial_gradients.h"
#include "optim/weight_codes.h"

namespace octet {

// 128-row groups of a tensor's rows, dealt to shards: whole groups, in order, numbers of them that differ by one at most. One more have those shards that have the fewest
// elements so far: `elements` is what each has, and is added to, so that over many tensors all have about as many.
std::vector<RowRange> deal_rows(int64_t rows, int64_t row_elements, std::vector<int64_t>& elements);

class DataParallel {
 public:
  // Deals out the model's rows (Param::own), before its memory is allocated. mesh and model outlive it. Errors: as WeightCodes.
  DataParallel(const Mesh& mesh, const ParallelConfig& config, Model& model, QuantRegistry& quant);

  // Waits for what is under way, unless an exception destroys it: whose memory it is, is freed next.
  ~DataParallel();
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;

  // One process: weight images are made at once, not as traversals come to them.
  bool alone() const { return mesh_.alone(); }
  bool lends_gradients() const { return zero_ >= 2; }
  bool lends_weights() const { return zero_ == 3; }

  // Memory of its own, beside the parameters.
  void allocate(Arena& arena);

  // Of a step. ctx: of its gradients; weights: of weight images, whose stochastic rounding counts rows from the tensor's first. All live as long as the hooks.
  struct Work {
    Ctx &ctx, &weights;
    QuantRegistry& quant;
  };
  // Counts the scratch memory of what it does with weights (Ctx::planning).
  void plan(const Work& work);
  // A step begins: no gradients of it are there.
  void begin_step();
  // last: the micro-batch is the last of its step, whose gradients complete the sums.
  UnitHooks training_hooks(const Work& work, bool last);
  UnitHooks evaluation_hooks(const Work& work);
  // Waits for the sums of all units: Param::own_grad is the sum over all ranks and micro-batches.
  void finish_gradients(Ctx& ctx);
  // Sums over the ranks of what the step's decision and the scales depend on. loss_sums: [2]; squares: of each parameter's own rows, [parameters]. Device memory.
  void sum_scalars(double* loss_sums, double* squares, QuantRegistry& quant);
  // Working copies of the own rows have changed, and the registry is in the step that reads them: the others' are gathered, and images made by the next
  // traversal as it goes.
  // gather: begin at once, where all weights have memory of their own; else as they are needed. False communicates nothing.
  void weights_changed(const Work& work, bool gather);
  // The groups' proof, before the first step. Gradients that say which rank they come from are summed by the hooks: the sums must be those over the data-parallel ranks, and of addends over the
  // ranks of tp, each once.
  // Weights that say whose they are come as the units are used: each must be there, and be the right one. Error(internal) names the tensor. Gradients are zero then, weights as before.
  void prove(const Work& work, Machine& machine);

 private:
  using Tickets = std::vector<Comm::Ticket>;
  void start_sum(const Unit& unit, Tickets& tickets);
  void settle(Ctx& ctx, int slot);
  void start_gather(const Work& work, size_t unit);
  void use_weights(const Work& work, size_t unit);
  void prefetch(const Work& work, size_t unit, std::optional<size_t> next);
  void wait_for_weights(size_t unit);
  void start_replica_sum(size_t unit);
  void follow_up(size_t keep);
  // Of a unit's gradients; null where nobody shares them.
  Comm* sum_group() const { return mesh_.shards() ? mesh_.shards() : mesh_.replicas(); }
  void prove_sums(const Work& work, Machine& machine);
  void prove_copies(const Work& work, Machine& machine);
  void prove_gathers(const Work& work, Machine& machine);

  const Mesh& mesh_;
  Model& model_;
  PartialGradients partial_;
  int zero_;              // 0 when there is one shard
  bool overlap_;
  std::map<const Param*, Pieces> pieces_;     // of elements
  std::optional<WeightCodes> codes_;          // parallel.fp8_param_gather
  bool maxima_are_old_ = false;               // of the weights that travel as codes
  std::vector<Tickets> sums_, gathers_;       // by unit, under way
  std::vector<bool> stale_, counted_, added_; // by unit: images are older than the weights; images were made since; own_grad has a sum of this step
  std::array<int, unit_slots> lent_to_{}, holds_{};   // by slot: the unit whose gradients are on their way, whose weights are there or coming; -1: none
  std::array<bool, unit_slots> lent_last_{};  // of the step's last micro-batch
  std::vector<size_t> unfinished_;            // units whose sums over the shards are under way and whose sums over the replicas are to follow, oldest first
  Comm::Ticket replica_sum_ = 0;              // the last one
};

}  // namespace octet
