// configs/recipes/blockwise_with_gw_rowwise.json is what docs/numerics.md says: blockwise in fprop and dgrad, rows in wgrad.
#include "config/config_io.h"
#include "numerics/scale.h"
#include "recipe/hardware.h"
#include "recipe_support.h"
#include "source_dir.h"

using namespace recipe_test;

namespace {

Recipe shipped() {
  ConfigTree tree;
  for (const char* file : {"models/tiny_byte.json", "runs/quickstart.json", "recipes/blockwise_with_gw_rowwise.json"}) tree.merge_file(octet::test::source_dir() + "/configs/" + file);
  RunConfig config = from_json(tree.values);
  validate(config);
  return make_recipe(config.precision.recipe, config.precision);
}

TEST(blockwise_with_gw_rowwise, is_blockwise_but_for_the_weight_gradient) {
  const Recipe r = shipped(), blockwise = make_recipe("blockwise", {});
  const std::pair<QuantSpec, QuantSpec> same[] = {{r.x_row, blockwise.x_row}, {r.w_row, blockwise.w_row}, {r.dy_row, blockwise.dy_row}, {r.w_col, blockwise.w_col}};
  for (auto [ours, theirs] : same) {
    ours.overflow_scale = theirs.overflow_scale;   // the one difference, which changes no scale: next test
    EXPECT_EQ(ours, theirs);
  }
  for (const QuantSpec& s : {r.dy_col, r.x_col}) EXPECT_EQ(s, block_spec(Dtype::e4m3, 1, 0, ScaleKind::pow2));
  EXPECT_EQ(r.accumulate, blockwise.accumulate);
  EXPECT_TRUE(images_share_bytes(r.w_row, r.w_col));
  EXPECT_TRUE(r.notes.empty());
}

// Rounded down to a power of two, the largest FP32 and the largest BF16 value are one: what JSON cannot say of blockwise it need not say.
TEST(blockwise_with_gw_rowwise, has_the_scales_of_blockwise_for_the_smallest_amaxes_too) {
  const float theirs = make_recipe("blockwise", {}).x_row.overflow_scale, ours = shipped().x_row.overflow_scale;
  ASSERT_NE(ours, theirs);
  for (const float amax : {1e-45f, 1e-40f, 1e-36f, 1.3e-36f, 1.4e-36f, 1.0f, 3e38f}) {
    EXPECT_EQ(scale_from_amax(amax, 448, true, 0, ours, false), scale_from_amax(amax, 448, true, 0, theirs, false)) << amax;
  }
  EXPECT_NE(scale_from_amax(1e-40f, 448, false, 0, ours, false), scale_from_amax(1e-40f, 448, false, 0, theirs, false)) << "with FP32 scales it would be one";
}

TEST(blockwise_with_gw_rowwise, is_native_on_hopper_alone) {
  const Recipe r = shipped();
  EXPECT_TRUE(r.emulation().empty());
  const RecipeSupport hopper = recipe_support(r, {9, 0}, false);
  EXPECT_EQ(hopper.whole, Verdict{}) << hopper.whole.reason;
  const RecipeSupport blackwell = recipe_support(r, {10, 0}, true);
  EXPECT_EQ(blackwell.whole.support, Support::emulated);
  expect_has(blackwell.whole.reason, "fprop, dgrad: cuBLASLt scales by blocks of 128 on compute capability 9.0 only; wgrad: cuBLASLt scales by row on compute capability 9.0 only");
}

// Channels of one operand of wgrad alone: no product of cuBLASLt.
TEST(blockwise_with_gw_rowwise, cannot_mix_rows_and_blocks_in_one_product) {
  Recipe r = shipped();
  r.x_col = r.x_row;
  const Verdict v = recipe_support(r, {9, 0}, true).products[2];
  EXPECT_EQ(v.support, Support::emulated);
  EXPECT_EQ(v.reason, "cuBLASLt does not scale one operand by row and the other by 1x128 blocks");
}

}  // namespace
