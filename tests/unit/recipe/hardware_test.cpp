// The hardware matrix as tables of expected verdicts.
#include "recipe/hardware.h"

#include "recipe_support.h"

namespace {

using namespace octet;
using recipe_test::expect_has;
using recipe_test::refusal;

constexpr Capability turing{7, 5}, ampere{8, 0}, ada{8, 9}, hopper{9, 0}, b200{10, 0}, b300{10, 3}, rtx50{12, 0};

Recipe recipe(const std::string& name) {
  PrecisionConfig p;
  p.calibration_steps = 1;
  return make_recipe(name, p);
}

// n native, e emulated, r refused; emulation is allowed.
TEST(hardware, every_named_recipe_on_every_capability) {
  struct Line {
    const char* name;
    std::string on;   // below 8.0, 8.0, 8.9, 9.0, 10.0, 10.3, 12.0
  };
  const Line lines[] = {{"fp32", "rnnnnnn"},       {"bf16", "rnnnnnn"},    {"delayed", "rrnnnnn"},           {"tensorwise", "rrnnnnn"}, {"static", "rrnnnnn"},
                        {"rowwise", "rreneee"}, {"blockwise", "rreneee"}, {"rowwise_with_gw_hp", "rreeeee"}, {"mxfp8", "rreennn"},   {"mxfp6", "rreeeee"},
                        {"nvfp4", "rreennn"}};
  const Capability columns[] = {turing, ampere, ada, hopper, b200, b300, rtx50};
  EXPECT_EQ(std::size(lines) + 1, recipe_names().size()) << "custom is no line";
  for (const Line& line : lines) {
    const Recipe r = recipe(line.name);
    for (size_t i = 0; i < std::size(columns); ++i) {
      const Verdict with = recipe_support(r, columns[i], true).whole, without = recipe_support(r, columns[i], false).whole;
      EXPECT_EQ(name(with.support)[0], line.on[i]) << line.name << " on " << name(columns[i]) << ": " << with.reason;
      EXPECT_EQ(name(without.support)[0], line.on[i] == 'n' ? 'n' : 'r') << line.name << " on " << name(columns[i]);
      EXPECT_EQ(with.reason.empty(), line.on[i] == 'n') << line.name << " on " << name(columns[i]);
      EXPECT_EQ(with.reason, without.reason);
    }
  }
}

// What cuBLASLt has.
TEST(hardware, products_of_cublaslt) {
  const Dtype e4m3 = Dtype::e4m3, e5m2 = Dtype::e5m2, e2m1 = Dtype::e2m1, bf16 = Dtype::bf16;
  using M = ScaleMode;
  struct Line {
    Dtype a;
    M scale_a;
    Dtype b;
    M scale_b;
    std::string on;   // 8.0, 8.9, 9.0, 10.0, 12.0
  };
  const Line lines[] = {
      {bf16, M::none, bf16, M::none, "11111"},
      {e4m3, M::tensor, e4m3, M::tensor, "01111"},
      {e5m2, M::tensor, e4m3, M::tensor, "01111"},
      {e4m3, M::tensor, e5m2, M::tensor, "01111"},
      {e5m2, M::tensor, e5m2, M::tensor, "00000"},
      {e4m3, M::row, e4m3, M::row, "00100"},
      {e5m2, M::row, e4m3, M::row, "00100"},
      {e5m2, M::row, e5m2, M::row, "00000"},
      {e4m3, M::row, e4m3, M::tensor, "00000"},
      {e4m3, M::block_1x128, e4m3, M::block_1x128, "00100"},
      {e4m3, M::block_1x128, e4m3, M::block_128x128, "00100"},
      {e5m2, M::block_128x128, e4m3, M::block_1x128, "00100"},
      {e4m3, M::block_128x128, e4m3, M::block_128x128, "00000"},
      {e4m3, M::block_1x128, e4m3, M::tensor, "00000"},
      {e4m3, M::mx_1x32, e4m3, M::mx_1x32, "00011"},
      {e5m2, M::mx_1x32, e4m3, M::mx_1x32, "00011"},
      {e5m2, M::mx_1x32, e5m2, M::mx_1x32, "00000"},
      {e4m3, M::mx_1x32, e4m3, M::tensor, "00000"},
      {e4m3, M::other, e4m3, M::other, "00000"},
      {e2m1, M::nv_1x16, e2m1, M::nv_1x16, "00011"},
      {e4m3, M::nv_1x16, e4m3, M::nv_1x16, "00000"},
      {e2m1, M::tensor, e2m1, M::tensor, "00000"},
      {Dtype::e2m3, M::mx_1x32, Dtype::e3m2, M::mx_1x32, "00000"},
  };
  const Capability columns[] = {ampere, ada, hopper, b200, rtx50};
  for (const Line& line : lines) {
    for (size_t i = 0; i < std::size(columns); ++i) {
      EXPECT_EQ(why_no_product(line.a, line.scale_a, line.b, line.scale_b, columns[i]).empty(), line.on[i] == '1')
          << name(line.a) << " mode " << int(line.scale_a) << " by " << name(line.b) << " mode " << int(line.scale_b) << " on " << name(columns[i]);
    }
  }
}

TEST(hardware, scale_modes_of_descriptions) {
  EXPECT_EQ(scale_mode(QuantSpec{}), ScaleMode::none);
  EXPECT_EQ(scale_mode(block_spec(Dtype::e4m3, 0, 0)), ScaleMode::tensor);
  EXPECT_EQ(scale_mode(block_spec(Dtype::e4m3, 1, 0, ScaleKind::pow2)), ScaleMode::row);
  EXPECT_EQ(scale_mode(block_spec(Dtype::e4m3, 1, 128)), ScaleMode::block_1x128);
  EXPECT_EQ(scale_mode(block_spec(Dtype::e4m3, 128, 128)), ScaleMode::block_128x128);
  EXPECT_EQ(scale_mode(block_spec(Dtype::e4m3, 1, 32, ScaleKind::e8m0)), ScaleMode::mx_1x32);
  EXPECT_EQ(scale_mode(block_spec(Dtype::e4m3, 1, 32)), ScaleMode::other) << "FP32 scales are not MXFP8's";
  EXPECT_EQ(scale_mode(block_spec(Dtype::e4m3, 1, 32, ScaleKind::pow2)), ScaleMode::other) << "nor powers of two that E8M0 may not have";
  EXPECT_EQ(scale_mode(block_spec(Dtype::e4m3, 32, 32, ScaleKind::e8m0)), ScaleMode::other);
  EXPECT_EQ(scale_mode(block_spec(Dtype::e2m1, 1, 16, ScaleKind::ue4m3)), ScaleMode::nv_1x16);
  EXPECT_EQ(scale_mode(block_spec(Dtype::e2m1, 16, 16, ScaleKind::ue4m3)), ScaleMode::nv_1x16);
  EXPECT_EQ(scale_mode(block_spec(Dtype::e2m1, 1, 16)), ScaleMode::other);
  EXPECT_EQ(scale_mode(block_spec(Dtype::e4m3, 0, 128)), ScaleMode::other);
}

TEST(hardware, what_no_emulation_makes_right) {
  const QuantSpec e4m3 = block_spec(Dtype::e4m3, 0, 0), e5m2 = block_spec(Dtype::e5m2, 0, 0);
  EXPECT_EQ(product_support({e4m3, e5m2, Dtype::f32}, hopper, false), Verdict{});
  for (const Product& p : {Product{e5m2, e5m2}, Product{e4m3, QuantSpec{}}, Product{e4m3, e4m3, Dtype::e4m3}}) {
    for (const Capability on : {ada, hopper, b200}) {
      const Verdict v = product_support(p, on, true);
      EXPECT_EQ(v.support, Support::refused) << name(on);
      EXPECT_FALSE(v.reason.empty());
    }
  }
}

TEST(hardware, the_reason_names_the_products) {
  const RecipeSupport s = recipe_support(recipe("rowwise_with_gw_hp"), hopper, true);
  EXPECT_EQ(s.products[0].support, Support::native);
  EXPECT_EQ(s.products[1].support, Support::emulated);
  EXPECT_EQ(s.products[2].support, Support::native);
  EXPECT_EQ(s.whole.reason, "dgrad: cuBLASLt does not scale one operand by row and the other by tensor");
  expect_has(recipe_support(recipe("rowwise_with_gw_hp"), ada, true).whole.reason, "fprop: cuBLASLt scales by row on compute capability 9.0 only; dgrad: ");
  EXPECT_EQ(recipe_support(recipe("blockwise"), b200, true).whole.reason, "cuBLASLt scales by blocks of 128 on compute capability 9.0 only");
}

TEST(hardware, refusals_say_what_to_do) {
  check_recipe(recipe("blockwise"), hopper, false);
  check_recipe(recipe("mxfp8"), hopper, true);
  std::string text = refusal([] { check_recipe(recipe("mxfp8"), hopper, false); });
  expect_has(recipe_support(recipe("mxfp8"), hopper, true).whole.reason, "MXFP8 products begin with compute capability 10.0");
  expect_has(recipe_support(recipe("nvfp4"), hopper, true).whole.reason, "NVFP4 products begin with compute capability 10.0");
  check_recipe(recipe("mxfp8"), b200, false);
  check_recipe(recipe("nvfp4"), b200, false);
  for (const char* part : {"precision.recipe: ", "9.0", "mxfp8", "set precision.emulate, or choose fp32, bf16, delayed, tensorwise, static, rowwise, blockwise"}) expect_has(text, part);
  text = refusal([] { check_recipe(recipe("tensorwise"), ampere, true); });
  expect_has(text, "(choose fp32, bf16)");
  expect_has(refusal([] { check_recipe(recipe("bf16"), turing, true); }), "use another GPU or run.device cpu");
}

TEST(hardware, modules_are_judged_by_their_own_recipes) {
  PrecisionConfig p;
  p.recipe = "tensorwise";
  p.first_last_layers_bf16 = 1;
  p.rules = {{"layers.1.mlp.*", "mxfp8"}};
  const PrecisionPolicy policy(p, 4);
  const std::vector<std::string> modules{"layers.0.attn.qkv", "layers.1.attn.qkv", "layers.1.mlp.down", "layers.3.mlp.down", "head"};
  EXPECT_EQ(recipe_of(policy, modules[0]).name, "bf16");
  EXPECT_EQ(recipe_of(policy, modules[1]).name, "tensorwise");
  EXPECT_EQ(recipe_of(policy, modules[2]).name, "mxfp8");
  EXPECT_EQ(recipe_of(policy, modules[3]).name, "bf16");
  check_recipes(policy, modules, hopper, true);
  expect_has(refusal([&] { check_recipes(policy, modules, hopper, false); }), "module layers.1.mlp.down");
  expect_has(refusal([&] { check_recipes(policy, modules, ampere, true); }), "precision.recipe: ");
}

TEST(hardware, kernels_run_where_they_were_compiled_for) {
  struct Line {
    const char* architectures;
    Capability on;
    bool runs;
  };
  const Line lines[] = {{"90a", hopper, true},        {"90a", b200, false},       {"90a", ada, false},         {"90", b200, true},       {"90-real", b200, false}, {"80-real", ada, true},
                        {"80-virtual", rtx50, true},  {"90-virtual", ada, false}, {"89,90a", ada, true},       {"89;90a", hopper, true}, {"100f", b300, true},     {"100f", rtx50, false},
                        {"100a-real", b300, false},   {"120", {12, 1}, true},     {"89-real,90a", ampere, false}, {"native", hopper, true}, {"", hopper, false}};
  for (const Line& line : lines) EXPECT_EQ(compiled_for(line.architectures, line.on), line.runs) << line.architectures << " on " << name(line.on);
}

}  // namespace
