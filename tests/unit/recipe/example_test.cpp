// The custom recipe printed in docs/numerics.md is one that the program takes, and means what the text says.
#include <fstream>

#include "config/config_io.h"
#include "recipe_support.h"
#include "source_dir.h"

using namespace recipe_test;

namespace {

// The indented block of the page that begins with {"precision".
std::string example() {
  std::ifstream in(octet::test::source_dir() + "/docs/numerics.md");
  std::string text;
  for (std::string line; std::getline(in, line);) {
    if (text.empty() && line.rfind("    {\"precision\"", 0) != 0) continue;
    if (line.rfind("    ", 0) != 0) break;
    text += line + "\n";
  }
  return text;
}

TEST(example, of_a_custom_recipe) {
  ConfigTree tree;
  for (const char* file : {"models/tiny_byte.json", "runs/quickstart.json"}) tree.merge_file(octet::test::source_dir() + "/configs/" + file);
  tree.set_expression("data.train=[{\"path\": \"text\"}]");
  tree.merge(parse_config_text(example(), "docs/numerics.md"), {});
  RunConfig config = from_json(tree.values);
  validate(config);
  const PrecisionConfig& p = config.precision;
  const Recipe r = make_recipe(p.recipe, p);
  EXPECT_EQ(r.name, "custom");
  for (const auto& [spec, rows] : {std::pair{&r.x_row, 1}, std::pair{&r.w_row, 64}, std::pair{&r.w_col, 64}}) {
    EXPECT_EQ(spec->format, Dtype::e4m3);
    EXPECT_EQ(spec->block_rows, rows);
    EXPECT_EQ(spec->block_cols, 64);
    EXPECT_EQ(spec->scale, ScaleKind::pow2);
  }
  EXPECT_EQ(r.dy_row.format, Dtype::e5m2);
  EXPECT_EQ(r.dy_row.block_rows, 1);
  EXPECT_EQ(r.dy_row.block_cols, 0);
  EXPECT_EQ(r.dy_row.rounding, Rounding::stochastic);
  EXPECT_FALSE(r.dy_col.quantized());
  EXPECT_FALSE(r.x_col.quantized());
}

}  // namespace
