// The hardware matrix: which matrix products a GPU has, by compute capability; the one place that knows. No CUDA header, no device.
//
//   scales of the two operands (FP8 unless said)   8.9     9.0     10.0, 10.3, 11.0, 12.x
//   one a tensor                                   yes     yes *   yes
//   one a row, of both operands                    -       yes *   -
//   1x128, and 1x128 by 128x128                    -       yes *   -
//   1x32, E8M0 (MXFP8)                             -       - *     yes
//   1x16, E4M3 (NVFP4, E2M1 elements)              -       - *     yes
//   E5M2 by E5M2, E2M3 and E3M2 elements           -       - *     -
//   BF16 and FP32, no scales                       from 8.0 on; * on 9.0
//
// * measured on an H200 (docs/benchmarks/hopper.md, tests/parity/device/gemm_test.cpp): what is "yes" was multiplied there with BF16 and FP32 results, also
// added to what is there; 128x128 by 128x128, row by tensor and E5M2 by E5M2 were refused there. All other columns were never run by us, MXFP8 and NVFP4 neither: they are
// cuBLASLt's documentation (cuBLAS 13.1, "narrow precision data types"), and NVIDIA's word that scales by row, 1x128 and 128x128 are for 9.0 alone
// (github.com/NVIDIA/CUDALibrarySamples, issues 270 and 310). Every product here has both operands with the contraction contiguous, the only form of FP8 on 8.9,
// 9.0 and 12.x.
// FP8 conversion instructions of octet's kernels begin with 8.9, BF16 tensor-core instructions with 8.0 (PTX ISA, cvt and mma).
//
// A product that is not native can be emulated: operands are dequantized to BF16 and multiplied in BF16. A run does so only where precision.emulate asks for it.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/capability.h"
#include "recipe/recipe.h"

namespace octet {

std::string name(Capability c);   // "9.0"
// Those that the matrix tells apart, ascending; 8.0 stands for all below 8.9.
const std::vector<Capability>& known_capabilities();

// How the scales of an operand lie over it. 16x16 blocks of NVFP4 weights are 1x16 blocks whose scales repeat.
enum class ScaleMode : uint8_t { none, tensor, row, block_1x128, block_128x128, other, mx_1x32, nv_1x16 };
ScaleMode scale_mode(ScaleKind scale, int64_t block_rows, int64_t block_cols);   // of a quantized operand
ScaleMode scale_mode(const QuantSpec& s);

// Why cuBLASLt has no product of these elements and scales on `on`; empty when it has.
std::string why_no_product(Dtype a, ScaleMode scale_a, Dtype b, ScaleMode scale_b, Capability on);

enum class Support : uint8_t { native, emulated, refused };
const char* name(Support s);

struct Verdict {
  Support support = Support::native;
  std::string reason;       // why it is not native, one line; empty when it is
  bool operator==(const Verdict&) const = default;
};

struct Product {
  QuantSpec a, b;
  Dtype out = Dtype::bf16;                          // bf16 or f32, written or added to: every mode has all four
};

// What octet does with the product on `on`. emulate: precision.emulate. Refused although `emulate`: what no emulation makes right (E5M2 by E5M2, one quantized
// operand, a result of another type), and quantized operands below 8.9, which octet's kernels cannot make.
Verdict product_support(const Product& p, Capability on, bool emulate);

struct RecipeSupport {
  std::array<Verdict, 3> products;                  // by Gemm
  Verdict whole;                                    // the worst of them; its reason names the products: "dgrad: ..."
};
RecipeSupport recipe_support(const Recipe& r, Capability on, bool emulate);

// Throws Error(config) at `where` when a product of the recipe is refused; the remedy names precision.emulate where that helps, and what is native on `on`.
void check_recipe(const Recipe& r, Capability on, bool emulate, const std::string& where = "precision.recipe");
// The same for every module of a model (Model::module_paths): `where` is precision.recipe, or the module whose own recipe is refused.
void check_recipes(const PrecisionPolicy& policy, const std::vector<std::string>& modules, Capability on, bool emulate);

// The recipe of a module by its path alone: layers.3.attn.qkv is of layer 3.
const Recipe& recipe_of(const PrecisionPolicy& policy, const std::string& module);

// Whether kernels compiled for `architectures` (CMAKE_CUDA_ARCHITECTURES: "90a", "89,90", "100f", "80-real") run on `on`. Machine code runs on its own major version
// from its minor on, that of "a" on its own capability only, that of "f" in its family; PTX (no "-real", no letter) runs on everything later. A list of words
// ("native", "all") says nothing: true.
bool compiled_for(std::string_view architectures, Capability on);

}  // namespace octet
