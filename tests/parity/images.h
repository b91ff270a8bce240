// Tests of operators that write images: the specs of every recipe, matrices to quantize, and the comparison of both backends' images, scales, amaxes, counts and
// statistics.
#pragma once
#include "ops/quantize.h"
#include "recipe/recipe.h"
#include "rig.h"

namespace parity {

struct Spec {
  std::string name;
  QuantSpec row, col;
};
// Every distinct pair of images that the recipes ask for, and block shapes that no recipe has.
std::vector<Spec> specs();

// Values whose magnitudes differ by blocks, with zeros, subnormals and ties; optionally elements that are not finite.
Host matrix(const std::string& name, Dtype dtype, int64_t rows, int64_t cols, bool nonfinite);

struct Case {
  Spec spec;
  bool row, col, health;
  float stored = 3.5f;
  bool given = false;   // amaxes, of images whose blocks may reach across ranks
};
// Whether a wanted image of the case can be given amaxes.
bool can_give(const Case& c, int64_t rows, int64_t cols);
// What is then given for an image: other amaxes than its own, zeros and Inf among them.
Host given_amaxes(const QuantSpec& spec, int64_t rows, int64_t cols, bool column);

// What the producer of the matrices is; both backends get it through the same operator. One entry of the vector a matrix.
using Producer = std::function<void(Ctx&, bool on_device, const std::vector<QuantizedOut>&)>;

// Images of `parts` matrices of [rows, cols], each with a target of its own: the device's, twice, against the host's.
void compare(Rig& rig, const Case& c, int64_t rows, int64_t cols, const Producer& produce, const std::string& what, int parts = 1);

// Whole tiles, ragged ones that the tile family takes (multiples of 16), ones that only the general family takes, and very small ones.
struct ImageSize {
  int64_t rows, cols;
};
constexpr ImageSize image_sizes[] = {{144, 208}, {130, 77}, {32, 48}, {1, 1}, {3, 130}};

}  // namespace parity
