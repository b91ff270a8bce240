// Shared by the recipe tests: configs in one line, and the text of a refusal.
#pragma once
#include <gtest/gtest.h>

#include <string>

#include "core/error.h"
#include "recipe/recipe.h"

namespace recipe_test {

using namespace octet;

inline CustomOperand operand(const char* format, int64_t block_rows = 0, int64_t block_cols = 0, const char* scale = "fp32",
                             const char* scaling = "current") {
  CustomOperand o;
  o.format = format;
  o.block_rows = block_rows;
  o.block_cols = block_cols;
  o.scale = scale;
  o.scaling = scaling;
  return o;
}

// A custom recipe with all six operands alike.
inline PrecisionConfig custom_of(const CustomOperand& o) {
  PrecisionConfig p;
  p.recipe = "custom";
  for (const char* key : {"fprop.x", "fprop.w", "dgrad.dy", "dgrad.w", "wgrad.dy", "wgrad.x"}) p.custom[key] = o;
  return p;
}

// The line a refusal prints; checks that it is a config error. "" when f did not throw.
template <class F>
std::string refusal(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_EQ(e.code, ExitCode::config) << e.what();
    EXPECT_FALSE(e.fix.empty()) << "no remedy in: " << e.what();
    return e.what();
  }
  return {};
}

inline void expect_has(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "no \"" << part << "\" in: " << text;
}

}  // namespace recipe_test
