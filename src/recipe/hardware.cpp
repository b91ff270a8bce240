#include "recipe/hardware.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/error.h"

namespace octet {
namespace {

const char* name_of(ScaleMode m) {
  constexpr const char* names[] = {"without scales", "scaled by tensor", "scaled by row", "scaled by 1x128", "scaled by 128x128", "scaled by other blocks"};
  return names[static_cast<size_t>(m)];
}

bool blocks(ScaleMode m) { return m == ScaleMode::block_1x128 || m == ScaleMode::block_128x128; }

}  // namespace

std::string to_string(Capability c) { return fmt::format("{}.{}", c.major, c.minor); }

ScaleMode scale_mode(bool quantized, int64_t block_rows, int64_t block_cols) {
  if (!quantized) return ScaleMode::none;
  if (block_rows == 0 && block_cols == 0) return ScaleMode::tensor;
  if (block_rows == 1 && block_cols == 0) return ScaleMode::row;
  if (block_rows == 1 && block_cols == 128) return ScaleMode::block_1x128;
  if (block_rows == 128 && block_cols == 128) return ScaleMode::block_128x128;
  return ScaleMode::other;
}

ProductOperand product_operand(const QuantSpec& s) { return {s.format, scale_mode(s.quantized(), s.block_rows, s.block_cols)}; }

std::string why_not_native(Capability c, const ProductOperand& a, const ProductOperand& b) {
  if (a.scale == ScaleMode::none && b.scale == ScaleMode::none) return {};
  const auto element = [](Dtype d) { return d == Dtype::e4m3 || d == Dtype::e5m2; };
  if (!element(a.format) || !element(b.format)) return fmt::format("octet has no tensor-core product of {} by {}", name(a.format), name(b.format));
  if (c < Capability{8, 9}) return fmt::format("compute capability {} has no FP8 tensor cores (8.9 and later do)", to_string(c));
  if (a.format == Dtype::e5m2 && b.format == Dtype::e5m2) return "cuBLASLt does not multiply e5m2 by e5m2";
  if (a.scale == ScaleMode::other || b.scale == ScaleMode::other) return "octet has products scaled by tensor, row, 1x128 and 128x128 blocks only";
  const bool pair = blocks(a.scale) ? blocks(b.scale) && (a.scale == ScaleMode::block_1x128 || b.scale == ScaleMode::block_1x128) : a.scale == b.scale;
  if (!pair) return fmt::format("cuBLASLt does not multiply an operand {} by one {}", name_of(a.scale), name_of(b.scale));
  if (a.scale != ScaleMode::tensor && c != Capability{9, 0}) return fmt::format("cuBLASLt multiplies operands {} on compute capability 9.0 only", name_of(a.scale));
  return {};
}

RecipeSupport recipe_support(const Recipe& r, Capability c) {
  return {{why_not_native(c, product_operand(r.x_row), product_operand(r.w_row)), why_not_native(c, product_operand(r.dy_row), product_operand(r.w_col)),
           why_not_native(c, product_operand(r.dy_col), product_operand(r.x_col))}};
}

std::string RecipeSupport::text() const {
  if (native()) return "native";
  constexpr const char* names[] = {"fprop", "dgrad", "wgrad"};
  std::string out;
  for (size_t i = 0; i < why_not.size(); ++i) {
    if (why_not[i].empty() || (i > 0 && std::find(why_not.begin(), why_not.begin() + static_cast<ptrdiff_t>(i), why_not[i]) != why_not.begin() + static_cast<ptrdiff_t>(i))) continue;
    std::vector<std::string> same;
    for (size_t j = i; j < why_not.size(); ++j) {
      if (why_not[j] == why_not[i]) same.emplace_back(names[j]);
    }
    out += fmt::format("{}{}: {}", out.empty() ? "" : "; ", same.size() == why_not.size() ? std::string("all products") : fmt::format("{}", fmt::join(same, ", ")), why_not[i]);
  }
  return out;
}

void check_hardware(const Recipe& recipe, Capability c, bool emulate, const std::string& where) {
  const RecipeSupport s = recipe_support(recipe, c);
  if (s.native() || emulate) return;
  throw Error(ExitCode::config, fmt::format("recipe \"{}\" is not native to this GPU (compute capability {}): {}", recipe.name, to_string(c), s.text()), where,
              "set precision.emulate to true (operands are decoded to BF16: its numerics, not its speed), choose another recipe, or run.device \"cpu\"");
}

}  // namespace octet
