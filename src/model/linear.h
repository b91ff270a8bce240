// Linear: y = x W^T (+ bias) for one or several projections of the same input (q, k, v; gate, up), in any recipe.
//
// The projections are separate logical tensors (weights, output gradients, scales, blocks), as in a Hugging Face file, and write
// neighbouring column ranges of one output. Forward, input gradient and weight gradient are separate calls: overlap and pipelining need that.
//
// With tensor parallelism (model/tensor_parallel.h) a linear is cut by its output features, and its input is whole (with sequence parallelism gathered, for forward and again
// for the weight gradient), or by its input features, and its output is a sum over the ranks. Shapes below are this rank's; T is all tokens of the micro-batch, t those of the
// residual stream here. A scale belongs to a block of the whole tensor: where the ranks have parts of one, the maximum over them is taken first, so that codes and scales are
// those of one rank (but of a key/value head that several ranks have: each quantizes its addend of the output gradient). What several ranks quantize alike is counted and
// measured by the first of them.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "model/param.h"
#include "model/pass.h"
#include "model/tensor_parallel.h"
#include "ops/quantize.h"

namespace octet {

// The input of a linear layer as its three consumers read it: fprop (row), wgrad (col), and the high-precision values.
struct LinearInput {
  Tensor value;        // what the producer (norm, SwiGLU) writes: [T, K], of a gathered input [t, K]; absent when every consumer reads a quantized image
  QuantizedOut images; // what the producer writes too
  Operand row, col;    // complete behind finish_input; of a gathered input col is made again by input_again
  QuantizedOut later;  // what finish_input makes of `value`
  Operand own;         // of an input that is gathered as codes: this rank's, kept for backward: the column image, or the row image where that has its bytes
};

// The output gradient; one entry a projection.
struct LinearGrad {
  Tensor value;                     // [T, sum of N_i]; absent when images are all that is read
  std::vector<Operand> row, col;    // [T, N_i], contraction over N_i and over T
  std::vector<QuantizedOut> images; // what the producer of the gradient has to write
  std::vector<QuantizedOut> later;  // what finish_grad makes of `value`
};

using WeightImages = std::map<const Param*, QuantizedOut>;

// By what a linear is cut over the ranks of tp.
enum class Cut : uint8_t { none, outputs, inputs };

class Linear {
 public:
  struct Part {
    std::string name;       // q_proj, gate_proj, ...
    Param* weight;          // [N_i, K]
    Param* bias = nullptr;  // [N_i]
    int site_w = -1, site_dy = -1;
    Operand w_row, w_col;
  };

  // Errors: Error(config) where a cut goes through blocks of the recipe.
  Linear(std::string module, std::vector<Part> parts, const Recipe& recipe, QuantRegistry& quant, ImageLayout layout = ImageLayout::source, const TensorParallel& tp = {},
         Cut cut = Cut::none);

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
  // Of weights that came as codes: the column image, where the device stores it by itself.
  void refresh_images(Ctx& ctx, QuantRegistry& quant, bool without_early, bool again = false);
  // Whether each rank may quantize its rows of the weights: one image has the bytes of both, in blocks that whole 128-row groups end.
  bool images_by_rows() const;
  // Whether the weight's scales come from its one largest magnitude, which ranks with parts of it exchange. Not for stored scales and blocks of fixed extent.
  bool needs_weight_amax(const Part& part, QuantRegistry& quant) const;
  // Quantizes the own rows of a part's working copy into the image. amax: of the whole tensor, where it needs one. again: as above.
  void quantize_own_rows(Ctx& ctx, QuantRegistry& quant, const Part& part, const Tensor& amax, bool again) const;
  // Adds the images that the optimizer's pass may make for step `step`.
  void early_images(QuantRegistry& quant, int64_t step, WeightImages& images) const;

  // Counts the images once, as a step that uses them does.
  void count_images(QuantRegistry& quant) const;

  // Memory for an input of so many rows, T or t: what backward needs comes from pass.saved, the rest from temporary.
  LinearInput allocate_input(const Pass& pass, Arena& temporary, int64_t rows) const;
  // The same for an input that already exists as `value` and is kept by the caller for as long as backward needs it.
  LinearInput input_of(const Pass& pass, Arena& temporary, const Tensor& value) const;
  // What readers will ask of an input: `forward`, and input_again in backward; input_again alone (it was computed again for that); forward and backward_weight at once (`all`).
  enum class Reader : uint8_t { forward, backward, all };
  // Behind the producer: quantizes and gathers what that could not, counts and dumps. tokens: T.
  void finish_input(const Pass& pass, Arena& temporary, LinearInput& x, int64_t tokens, Reader reader = Reader::forward) const;

  // y: [T, out_features]; where inputs are cut [t, out_features].
  void forward(const Pass& pass, const LinearInput& x, const Tensor& y) const;
  // Memory for the gradient of an output of T tokens, all of it scratch; the same for a gradient that already exists.
  LinearGrad allocate_grad(const Pass& pass, int64_t tokens) const;
  LinearGrad grad_of(const Pass& pass, const Tensor& dy) const;
  // Behind the producer: quantizes what that could not, counts and dumps.
  void finish_grad(const Pass& pass, LinearGrad& dy) const;
  // Images of dy from scratch memory: [T, out_features], where inputs are cut [t, out_features]. tokens: T.
  LinearGrad quantize_grad(const Pass& pass, const Tensor& dy, int64_t tokens) const;
  // What backward_weight reads of the input of forward, which with sequence parallelism is gathered again, into scratch memory. Before backward_input, whose sum then moves beside the weight gradient.
  LinearInput input_again(const Pass& pass, const LinearInput& x, int64_t tokens) const;
  // This rank's addend of dx: [T, in_features], overwritten.
  void partial_input_grad(const Pass& pass, const LinearGrad& dy, const Tensor& dx) const;
  // dx: [T, in_features], where outputs are cut [t, in_features], overwritten when the sum is finished.
  [[nodiscard]] RowSum backward_input(const Pass& pass, const LinearGrad& dy, const Tensor& dx) const;
  // Gradients of weights (from the images), written when `first` and else added, and of biases (from the high-precision dy), always added.
  void backward_weight(const Pass& pass, const LinearGrad& dy, const LinearInput& x, bool first) const;
  void backward_weight(const Pass& pass, const LinearGrad& dy, const LinearInput& x) const { backward_weight(pass, dy, x, pass.writes_gradients()); }

  // Adds the accumulated weight gradients, weights and specs to the dump.
  void dump_weights(Dump& dump, QuantRegistry& quant) const;

 private:
  // A matrix whose images are still to be made.
  struct Unquantized {
    MatrixView x;
    QuantizedOut* images;
  };
  double gemm_flops(int64_t tokens) const { return 2.0 * static_cast<double>(tokens) * static_cast<double>(in_) * static_cast<double>(out_); }
  bool gathers_input() const { return cut_ == Cut::outputs && tp_.sequence; }
  bool gathers_codes() const { return gathers_input() && tp_.fp8_gather && recipe_.x_row.quantized(); }
  bool gathers_grad_codes() const;
  void check_cut() const;
  QuantizedOut weight_images(const Part& p, const QuantTarget& target) const;
  QuantTarget input_target(const Pass& pass, int64_t rows) const;
  bool quantizes_later(const Pass& pass, int64_t rows) const;
  bool grad_waits(const Pass& pass) const;
  LinearInput make_input(const Pass& pass, Arena& temporary, const Tensor& value, int64_t rows) const;
  LinearGrad make_grad(const Pass& pass, const Tensor& value, int64_t tokens) const;
  Tensor gathered(Ctx& ctx, Arena& arena, const Tensor& own, int64_t tokens) const;
  Operand gathered(Ctx& ctx, Arena& arena, const QuantSpec& spec, const Operand& own, bool column, int64_t tokens, int64_t width) const;
  void transpose_image(Ctx& ctx, const Operand& row, const Operand& col) const;
  Operand column_image(Ctx& ctx, Arena& arena, const QuantSpec& spec, const Operand& row) const;
  Operand column_of(const Pass& pass, const LinearInput& x, int64_t tokens) const;
  LinearGrad gathered_grad_codes(const Pass& pass, const Tensor& dy, int64_t tokens) const;
  void quantize_over_ranks(Ctx& ctx, const std::vector<Unquantized>& all, bool cut_rows) const;

  std::string module_;
  std::vector<Part> parts_;
  Recipe recipe_;
  ImageLayout layout_;
  TensorParallel tp_;
  Cut cut_;
  int site_x_;
  int64_t in_ = 0, out_ = 0, whole_in_ = 0;
};

}  // namespace octet
