// Recipes are data: how each operand of the three GEMMs of a linear layer is quantized. No code depends on a recipe's name.
//
//   fprop  Y[T,N]  = X[T,K] . W[N,K]^T     contraction over K
//   dgrad  dX[T,K] = dY[T,N] . W[N,K]      contraction over N
//   wgrad  dW[N,K] = dY[T,N]^T . X[T,K]    contraction over T (tokens)
//
// An operand is described in its contraction-last layout: X for fprop is [T,K], X for wgrad is X^T [K,T]. "Row image" is the
// operand of the original layout, "column image" that of the transposed one.
// Sources: NVIDIA Transformer Engine (delayed, current, block, MXFP8), torchao float8 (rowwise), DeepSeek-V3 (arXiv 2412.19437,
// section 3.3), OCP Microscaling 1.0, arXiv 2506.08027 (MXFP8 round-up), arXiv 2509.25149 (NVFP4). docs/numerics.md states each formula.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "core/dtype.h"

namespace octet {

enum class Gemm : uint8_t { fprop, dgrad, wgrad };
enum class ScaleKind : uint8_t { fp32, pow2, e8m0, ue4m3 };   // ue4m3: E4M3 a block under one FP32 scale a tensor (NVFP4)
enum class Scaling : uint8_t { current, delayed, fixed };      // fixed: recipe `static`
enum class Rounding : uint8_t { nearest, stochastic };
enum class Accumulate : uint8_t { fast, accurate };   // tensor-core accumulator alone, or promoted to FP32 every 128

struct QuantSpec {
  Dtype format = Dtype::bf16;       // bf16 and f32: not quantized
  int64_t block_rows = 0;           // block of elements that share a scale, in contraction-last layout; 0: whole extent
  int64_t block_cols = 0;
  ScaleKind scale = ScaleKind::fp32;
  Scaling scaling = Scaling::current;
  Rounding rounding = Rounding::nearest;
  int32_t margin = 0;               // delayed and fixed: scale times 2^-margin
  float static_amax = 0;            // fixed: the magnitude that maps to the largest value; 0: collected by calibration
  bool hadamard = false;            // 16-point transform along the contraction before anything else (numerics/hadamard.h)
  float amax_epsilon = 0;           // lower bound of amax
  float overflow_scale = 3.402823466e+38f;  // replaces an infinite scale (largest finite value; BF16's for block scaling)
  bool fp64_divide = false;         // scale = fl32(double(max) / amax), as torchao rowwise

  bool quantized() const { return format != Dtype::bf16 && format != Dtype::f32; }
  bool per_tensor() const { return block_rows == 0 && block_cols == 0; }
  // The transposed operand has the same blocks, so its bytes are the transposed bytes.
  bool square() const { return block_rows == block_cols; }
  // The scale is kept from step to step (QuantRegistry) instead of being made of the tensor at hand.
  bool stored_scale() const { return quantized() && scaling != Scaling::current; }
  bool operator==(const QuantSpec&) const = default;
};

// Blocks of [rows, cols] elements of `format`, scaled by themselves, rounded to nearest.
QuantSpec block_spec(Dtype format, int64_t rows, int64_t cols, ScaleKind scale = ScaleKind::fp32);

struct Recipe {
  std::string name;
  Dtype compute = Dtype::bf16;      // activations and unquantized operands: bf16, or f32 for the recipe fp32
  QuantSpec x_row, x_col;           // fprop, wgrad
  QuantSpec w_row, w_col;           // fprop, dgrad
  QuantSpec dy_row, dy_col;         // dgrad, wgrad
  std::array<Accumulate, 3> accumulate{Accumulate::accurate, Accumulate::accurate, Accumulate::accurate};

  std::vector<std::string> notes;   // warnings to print once, e.g. MXFP8 with E5M2 gradients

  bool quantizes() const { return x_row.quantized() || dy_row.quantized() || dy_col.quantized(); }
  bool uses(Scaling s) const;       // by any quantized operand
  // Why no tensor core of compute capability 9.0 computes this recipe; empty when one does. Such a recipe runs as a labelled emulation:
  // products of exactly decoded operands.
  std::string emulation() const;
};

// Whether one set of bytes serves both images: same description, blocks that transpose onto themselves, nothing that depends on the direction.
bool images_share_bytes(const QuantSpec& row, const QuantSpec& col);

// The names --fp8-recipe accepts, in documentation order.
const std::vector<std::string>& recipe_names();

// The recipe `name` with the options of `p` applied. Throws Error(config) for combinations that cannot be right
// (pure E5M2, two-dimensional blocks on gradients, one quantized operand in a GEMM, E8M0 with delayed scaling, ...).
Recipe make_recipe(const std::string& name, const PrecisionConfig& p);

// Which recipe each module runs: precision.rules (first match wins), then first_last_layers_bf16, then head, then the run's.
class PrecisionPolicy {
 public:
  PrecisionPolicy(const PrecisionConfig& p, int64_t num_layers);
  // path: a module path such as layers.3.attn.qkv; layer: its layer number or -1 (embed, head).
  const Recipe& for_module(const std::string& path, int64_t layer) const;
  const Recipe& base() const { return base_; }
  // Throws if a rule matched no module of `paths` (a misspelt glob would silently do nothing).
  void check_rules(const std::vector<std::string>& paths) const;

 private:
  PrecisionConfig config_;
  int64_t num_layers_;
  Recipe base_, bf16_;
  std::vector<std::pair<std::string, Recipe>> rules_;
};

// Shell glob: * any run of characters, ? one character.
bool glob_match(const std::string& pattern, const std::string& text);

}  // namespace octet
