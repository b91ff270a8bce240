// Linear: y = x W^T (+ bias) for one or several projections of the same input (q, k, v; gate, up), in any recipe.
//
// The projections are separate logical tensors (weights, output gradients, scales, blocks), as in a Hugging Face file, and write
// neighbouring column ranges of one output. Forward, input gradient and weight gradient are separate calls: overlap and pipelining need that.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "model/param.h"
#include "model/pass.h"
#include "ops/quantize.h"

namespace octet {

// The input of a linear layer as its three consumers read it: fprop (row), wgrad (col), and the high-precision values.
struct LinearInput {
  Tensor value;        // [T, K]; absent when every consumer reads a quantized image
  Operand row, col;
  QuantizedOut images; // what the producer of the input (norm, SwiGLU) has to write
};

// The output gradient; one entry a projection.
struct LinearGrad {
  Tensor value;                     // [T, sum of N_i]; absent when images are all that is read
  std::vector<Operand> row, col;    // [T, N_i], contraction over N_i and over T
  std::vector<QuantizedOut> images; // what the producer of the gradient has to write
};

using WeightImages = std::map<const Param*, QuantizedOut>;

class Linear {
 public:
  struct Part {
    std::string name;       // q_proj, gate_proj, ...
    Param* weight;          // [N_i, K]
    Param* bias = nullptr;  // [N_i]
    int site_w = -1, site_dy = -1;
    Operand w_row, w_col;
  };

  Linear(std::string module, std::vector<Part> parts, const Recipe& recipe, QuantRegistry& quant, ImageLayout layout = ImageLayout::source);

  const std::string& module() const { return module_; }
  const Recipe& recipe() const { return recipe_; }
  ImageLayout image_layout() const { return layout_; }
  int64_t in_features() const { return in_; }
  int64_t out_features() const { return out_; }
  const std::vector<Part>& parts() const { return parts_; }

  void allocate_images(Arena& arena);
  // Quantizes the working weights; called once after each optimizer update and serves all its micro-batches. without_early: of weights whose images the
  // optimizer's pass has not made (QuantRegistry::made_early for the step that the registry is in).
  // again: of weights whose images were made in this step before: nothing is counted or staged twice.
  void refresh_images(Ctx& ctx, QuantRegistry& quant, bool without_early, bool again = false);
  // Adds the images that the optimizer's pass may make for step `step`.
  void early_images(QuantRegistry& quant, int64_t step, WeightImages& images) const;

  // Counts the images once, as a step that uses them does.
  void count_images(QuantRegistry& quant) const;

  // Memory for an input of T tokens: what backward needs comes from pass.saved, the rest from temporary.
  LinearInput allocate_input(const Pass& pass, Arena& temporary, int64_t tokens) const;
  // The same for an input that already exists as `value` and is kept by the caller for as long as backward needs it.
  LinearInput input_of(const Pass& pass, Arena& temporary, const Tensor& value) const;
  // Counts and dumps an input whose images have been written.
  void note_input(const Pass& pass, const LinearInput& x) const;

  // y: [T, out_features].
  void forward(const Pass& pass, const LinearInput& x, const Tensor& y) const;
  // Memory for the gradient of an output of T tokens, all of it scratch; the same for a gradient that already exists.
  LinearGrad allocate_grad(const Pass& pass, int64_t tokens) const;
  LinearGrad grad_of(const Pass& pass, const Tensor& dy) const;
  // Counts and dumps a gradient whose images have been written.
  void note_grad(const Pass& pass, const LinearGrad& dy) const;
  // Images of dy [T, out_features], from scratch memory.
  LinearGrad quantize_grad(const Pass& pass, const Tensor& dy) const;
  // dx: [T, in_features], overwritten.
  void backward_input(const Pass& pass, const LinearGrad& dy, const Tensor& dx) const;
  // Gradients of weights (from the images), written when `first` and else added, and of biases (from the high-precision dy), always added.
  void backward_weight(const Pass& pass, const LinearGrad& dy, const LinearInput& x, bool first) const;
  void backward_weight(const Pass& pass, const LinearGrad& dy, const LinearInput& x) const { backward_weight(pass, dy, x, pass.writes_gradients()); }

  // Adds the accumulated weight gradients, weights and specs to the dump.
  void dump_weights(Dump& dump, QuantRegistry& quant) const;

 private:
  double gemm_flops(int64_t tokens) const { return 2.0 * static_cast<double>(tokens) * static_cast<double>(in_) * static_cast<double>(out_); }
  QuantizedOut weight_images(const Part& p, const QuantTarget& target) const;
  LinearInput make_input(const Pass& pass, Arena& temporary, const Tensor& value, int64_t tokens) const;
  LinearGrad make_grad(const Pass& pass, const Tensor& value, int64_t tokens) const;

  std::string module_;
  std::vector<Part> parts_;
  Recipe recipe_;
  ImageLayout layout_;
  int site_x_;
  int64_t in_ = 0, out_ = 0;
};

}  // namespace octet
