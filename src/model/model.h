// Model: a Llama-family decoder, written once for every device and precision. A step read top to bottom:
//
//   train:     embedding -> blocks forward -> head forward + backward, chunk by chunk -> blocks backward -> embedding backward
//   evaluate:  embedding -> blocks forward -> head forward
// Gradients accumulate in FP32 over micro-batches; losses are added to Pass::loss_sums as sums over valid tokens, and the caller divides by the global count.
#pragma once
#include <array>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "model/block.h"
#include "model/head.h"
#include "model/unit.h"

namespace octet {

// One micro-batch; vectors of length tokens, i32.
struct TokenBatch {
  int64_t seq_len = 0;
  Tensor tokens, labels;       // label -1: no loss
  Tensor positions;
  Tensor document_start;       // empty: attention sees the whole sample
};

class Model {
 public:
  // Registers all quantization sites with `quant`. config: validated.
  // tp: with ranks that share each matrix, this rank's place among them. Errors: Error(config) where the cuts go through blocks of a recipe.
  Model(const RunConfig& config, QuantRegistry& quant, ImageLayout layout = ImageLayout::source, const TensorParallel& tp = {});

  const std::vector<std::unique_ptr<Param>>& params() const { return params_; }
  std::vector<std::string> module_paths() const;   // layers.0.attn.qkv ... head
  int64_t parameter_count() const;                 // of the whole model, without vocabulary padding
  const PrecisionPolicy& precision() const { return policy_; }
  // Embedding, layers, head; a tied head is in the embedding's. The order of their first use.
  const std::vector<Unit>& units() const { return units_; }

  // Parameters and the RoPE table, with the optimizer's own tensors in `states` (model/param.h); then the quantized weight images. Where memory is lent, it comes from one
  // arena a slot (Unit::slot); null: nothing is.
  using Slots = std::array<Arena, unit_slots>;
  struct Memory {
    Arena &lasting, &states, &images;
    Slots *grads = nullptr, *working = nullptr;   // working: images too
  };
  void allocate(const Memory& memory);

  // Fills the masters and the RoPE table: a pure function of (seed, logical name, element index). perturbation p: times (1 + p N(0,1)).
  void initialize(Machine& machine, uint64_t seed, double perturbation);
  // Gradients and moments become zero.
  void clear_states(Ctx& ctx);
  // Working copies of the own rows from the masters; after initialization and loading. Images follow.
  void refresh_working(Ctx& ctx);
  // The images that the optimizer's pass at the end of a step may make for step `step`.
  WeightImages early_images(QuantRegistry& quant, int64_t step) const;
  // Images alone, after the optimizer has written the working copies; without_early: but those, of the step that the registry is in.
  void refresh_images(Ctx& ctx, QuantRegistry& quant, bool without_early);

  void count_images(QuantRegistry& quant) const;

  // Before a step's first micro-batch (or each one, where their gradients are separate): gradients that are only ever added to. Those of the matrices are written,
  // which saves clearing and reading them: 4 % of the bytes of a Llama-3-8B step.
  void zero_gradients(Ctx& ctx);
  void zero_gradients(Ctx& ctx, const Unit& unit);
  // grad_scale: 1 / (valid tokens of the global batch), in the memory of the device.
  void train_micro_batch(Pass& pass, const TokenBatch& batch, const float* grad_scale);
  void evaluate(Pass& pass, const TokenBatch& batch);

  // Adds the weights, images and accumulated gradients of the modules the dump wants.
  void dump_weights(Dump& dump, QuantRegistry& quant) const;

 private:
  // Of `whole`, rows (of a vector: elements) and columns.
  struct Part {
    RowRange rows, cols;
    int64_t logical_rows;
  };
  Param& add_param(std::string name, Shape whole, const Part& part, Init init, bool decay);
  Param& add_vector(const std::string& name, int64_t elements, Init init, TpGradient gradient);
  Param& add_vocabulary(const std::string& name);
  TpGradient norm_gradient() const;
  void make_units();
  size_t behind(size_t unit) const;
  Block make_block(int64_t layer, const RunConfig& config, QuantRegistry& quant);
  TokenGeometry geometry(const TokenBatch& batch) const;
  Shape stream(const TokenGeometry& t) const;
  void embed(const Pass& pass, const TokenBatch& batch, const Tensor& x) const;
  void embed_backward(const Pass& pass, const TokenBatch& batch, const Tensor& grad) const;
  std::vector<Linear*> linears() const;

  ModelConfig config_;
  ImageLayout layout_;
  StateFormats formats_;
  PrecisionPolicy policy_;
  TensorParallel tp_;
  HeadGeometry heads_;   // this rank's
  int64_t seq_len_;
  std::vector<std::unique_ptr<Param>> params_;
  Param* embedding_;
  std::vector<std::unique_ptr<Block>> blocks_;
  std::unique_ptr<Head> head_;
  size_t head_unit_ = 0;   // the embedding's when the head is tied
  std::vector<Unit> units_;
  std::set<const Param*> written_;   // by the linears' backward: they need no zeros
  Tensor rope_table_;
};

}  // namespace octet
