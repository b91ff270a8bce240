// Engine: a model with its memory, its quantization state and its optimizer: everything that computes. Knows no files.
//
// One step (docs/architecture.md walks through it):
//   zero gradients -> for each micro-batch forward + backward -> gradient norm -> decision (ops::decide_step) -> AdamW, gated by it -> the host learns of it all
//     finite:      stored scales updated
//     not finite:  AdamW changed nothing; the first offending tensor is named; amax histories stay
//   -> weight images made again for the next step
// On a GPU the host waits once, behind AdamW.
//
// In a job of several ranks each has an engine; they do all of this together (optim/data_parallel.h), and every rank has the same results.
#pragma once
#include <array>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "config/run_config.h"
#include "comm/mesh.h"
#include "core/context.h"
#include "data/loader.h"
#include "model/model.h"
#include "ops/machine.h"
#include "ops/optimizer.h"
#include "ops/shadow.h"
#include "optim/data_parallel.h"

namespace octet {

// Bytes by purpose, from a dry run of the step and of validation over counting arenas. Of the device, except `communication`, `batches` and `offloaded`.
struct MemoryPlan {
  DeviceKind device = DeviceKind::cpu;
  size_t master = 0, moments = 0, gradients = 0, working = 0;  // parameters; master: FP32 values, or the remainders below `working`
  size_t images = 0;                                           // quantized weights that are kept
  std::array<size_t, unit_slots> lent_grads{}, lent_working{}; // ZeRO 2, 3: gradients of some layers; weights of some layers with their images
  size_t communication = 0;                                    // host: what collective operations receive into
  size_t nccl = 0;                                             // device only: NCCL's buffers
  size_t parameter_arena = 0;                                  // those of the four that are on the device, rounded, and the RoPE table
  size_t offloaded = 0;                                        // host: the others (optim.offload)
  size_t activations = 0;                                      // kept from forward to backward, one micro-batch
  size_t scratch = 0;
  size_t state = 0;                                            // device only: a micro-batch's tokens, scales, sums
  size_t overhead = 0;                                         // device only: context and workspace (Machine::overhead_bytes)
  size_t batches = 0;                                          // host: token batches read ahead, and the validation set
  // Of the memory that decides whether the run fits.
  size_t lent() const;
  size_t total() const { return parameter_arena + images + lent() + activations + scratch + state + overhead + nccl + (device == DeviceKind::cpu ? communication + batches : 0); }
};

struct StepResult {
  double loss = 0;         // mean cross-entropy over the valid tokens of the global batch
  int64_t valid_tokens = 0;
  double z_loss = 0;
  double grad_norm = 0;    // before clipping
  double lr = 0;
  bool skipped = false;
  int64_t nonfinite = 0;           // elements seen by quantizers
  std::string offender;            // first tensor with a non-finite value
  std::vector<QuantRegistry::HealthEntry> health;   // of this step, empty when it was not due
};

class Engine {
 public:
  // plan_only: nothing is allocated, only memory() is of use. poisoned: activations and scratch are filled with NaN patterns whenever
  // they are free, so that a read of stale memory shows (tests).
  enum class Memory { plain, plan_only, poisoned };

  // config: validated. Plans, allocates, initializes.
  // dump_modules: glob of the modules that some step will dump, whose memory is planned too; empty: none.
  // mesh: of a job of several ranks, which outlives the engine; null: this process is alone. On a GPU its groups are to be made the devices' before the first step (train/device_groups.h).
  explicit Engine(const RunConfig& config, Memory memory = Memory::plain, const std::string& dump_modules = {}, const Mesh* mesh = nullptr);

  ~Engine();

  const MemoryPlan& memory() const { return plan_; }
  Model& model() { return *model_; }
  QuantRegistry& quant() { return quant_; }
  Machine& machine() { return machine_; }
  const Mesh& mesh() const { return *mesh_; }
  // Spans of the following calls go to `tracer`; null: none.
  void set_tracer(Tracer* tracer) { tracer_ = tracer; }
  // run.shadow: steps and validations are compared with the CPU's operators, and throw at the first that disagrees. Null: they are not.
  const Shadow* shadow() const { return shadow_.get(); }

  // Before the first step on a GPU: makes every product of a step and of validation once, with the given algorithms where there are such, and times the
  // others' candidates (run.gemm_choice). Without this call products take cuBLASLt's first suggestion.
  ProductTiming prepare_products(const ProductChoices& choices);

  // Runs optimizer step `step` (from 0) with this rank's micro-batches. dump: collects this step's tensors, or null.
  StepResult step(const data::StepBatch& batch, int64_t step, Dump* dump = nullptr);
  // Mean cross-entropy over the valid tokens of all batches, which every rank has and the ranks take in turn; no state changes.
  double evaluate(const std::vector<data::MicroBatch>& batches);

  // Of a job: the ranks' proof that gradients are summed over the right ones (DataParallel::prove). Before the first step, by all.
  void join_ranks();

  // After masters and moments were loaded: working copies and images follow, as they were in the run that saved them before it ran
  // step `next_step` (from 0; stochastic rounding depends on it).
  void weights_loaded(int64_t next_step = 0);
  // Kinds of micro-batches that are run as recordings (run.cuda_graphs).
  size_t recordings() const { return recordings_; }
  int64_t updates() const { return updates_; }          // optimizer updates applied
  void set_updates(int64_t n) { updates_ = n; }

 private:
  bool offloads() const { return config_.optim.offload && machine_.kind() == DeviceKind::cuda; }
  void plan(const std::string& dump_modules);
  void allocate(bool poison);
  void allocate_parameters(Arena& parameters, Arena& offloaded, Arena& images, Model::Slots& grads, Model::Slots& working);
  void allocate_state(Arena& arena);
  Ctx context(Arena& scratch);
  // With the run's shadow, if it has one. step: its number from 1, 0 of a validation.
  Ctx shadowed_context(int64_t step);
  // What operators read of the work they are given next.
  // weights_step: the step that weight images made meanwhile serve.
  void set_work(StepKey key, float grad_scale, int64_t weights_step);
  Ctx weight_context(const Ctx& ctx) const;
  void merge_statistics();
  Pass pass_over(Ctx& ctx) { return {ctx, quant_, activations_, scalars_.loss_sums}; }
  TokenBatch upload(const data::MicroBatch& batch);
  void train_micro_batch(Pass& pass, const TokenBatch& tokens);
  void push_quant_state();
  // The optimizer and, for the step behind `step`, the weight images that its pass makes.
  void update(Ctx& ctx, double lr, int64_t step);

  // What a step leaves in the memory of the device for the host to read, in one block.
  struct Scalars {
    double *loss_sums = nullptr, *squares = nullptr;   // [2], [parameters]
    StepOutcome* outcome = nullptr;
  };
  // In the memory of the device, so that a recorded micro-batch serves every step. Weight images are keyed by the step they serve, and by their own rows.
  struct Work {
    StepKey key;
    float grad_scale;
    StepKey weights;
  };
  // A micro-batch's forward and backward, recorded when its like comes for the second time. `counts`: what it adds to the registry's.
  struct RecordedBatch {
    Machine::Recording recording;
    QuantRegistry::Counts counts{};
  };
  using BatchKind = std::tuple<std::vector<bool>, bool, int64_t>;   // QuantRegistry::work(), first micro-batch of its step, sequence length
  struct StepScalars {   // on the host
    double loss_sums[2];
    std::vector<double> squares;
    StepOutcome outcome;
  };
  StepScalars read_scalars();
  std::string offender(const StepScalars& s) const;

  RunConfig config_;
  Mesh alone_;
  const Mesh* mesh_;
  Machine machine_;
  QuantRegistry quant_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<DataParallel> dp_;
  MemoryPlan plan_;
  Arena parameters_, offloaded_, images_, activations_, scratch_, state_;
  Model::Slots lent_grads_, lent_working_;   // ZeRO 2 and 3
  Scalars scalars_;
  Work* work_ = nullptr;
  std::map<BatchKind, RecordedBatch> recorded_;
  size_t recordings_ = 0;
  data::MicroBatch filled_;   // a short one, made whole
  Tensor ids_[4];   // a micro-batch's tokens, labels, positions and document starts on a device; empty on the CPU
  int64_t updates_ = 0;
  Tracer* tracer_ = nullptr;
  std::unique_ptr<Shadow> shadow_;
};

}  // namespace octet
