// Hardware matrix: which products of a recipe a GPU's tensor cores compute (native), which octet computes by decoding operands to BF16 (emulated, when
// precision.emulate is set), and why.
//
// Sources: cuBLASLt's documentation of scaling modes and types (CUDA 12.9 to 13.1). Compute capability 9.0 was verified product by product on an H200
// (docs/benchmarks/hopper.md); the other rows are as documented, and nothing of them has been run. Native on 10.0 and later would be MXFP8 and NVFP4 too; octet does not
// write their tiled scale layouts, so it emulates them there as well.
#pragma once
#include <string>
#include <vector>

#include "core/capability.h"
#include "recipe/recipe.h"

namespace octet {

std::string to_string(Capability c);   // "9.0"

// How an operand's scales lie, as products see it.
enum class ScaleMode : uint8_t { none, tensor, row, block_1x128, block_128x128, other };
ScaleMode scale_mode(bool quantized, int64_t block_rows, int64_t block_cols);

struct ProductOperand {
  Dtype format = Dtype::bf16;
  ScaleMode scale = ScaleMode::none;
};
ProductOperand product_operand(const QuantSpec& spec);

// Why no product of octet on such a GPU takes these operands as they are; empty when one does.
std::string why_not_native(Capability c, const ProductOperand& a, const ProductOperand& b);

// The three products of a linear layer: fprop, dgrad, wgrad; reasons as above.
struct RecipeSupport {
  std::array<std::string, 3> why_not;
  bool native() const { return why_not[0].empty() && why_not[1].empty() && why_not[2].empty(); }
  // "native", or "fprop, wgrad: REASON".
  std::string text() const;
};
RecipeSupport recipe_support(const Recipe& recipe, Capability c);

// Throws Error(config) naming the key `where` when the recipe needs emulation and `emulate` is not set.
void check_hardware(const Recipe& recipe, Capability c, bool emulate, const std::string& where);

}  // namespace octet
