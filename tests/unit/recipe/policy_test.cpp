// Which recipe each module runs, and the globs that say so.
#include "recipe_support.h"

using namespace recipe_test;

namespace {

struct Place {
  const char* path;
  int64_t layer;
  const char* recipe;
};

void expect_places(const PrecisionConfig& p, int64_t layers, std::initializer_list<Place> places) {
  const PrecisionPolicy policy(p, layers);
  for (const Place& at : places) EXPECT_EQ(policy.for_module(at.path, at.layer).name, at.recipe) << at.path;
}

PrecisionConfig config(const char* recipe) {
  PrecisionConfig p;
  p.recipe = recipe;
  return p;
}

TEST(policy, layers_take_the_runs_recipe_and_the_head_bf16) {
  expect_places(config("blockwise"), 4, {{"layers.0.attn.qkv", 0, "blockwise"}, {"layers.3.mlp.down", 3, "blockwise"}, {"head", -1, "bf16"}});
  EXPECT_EQ(PrecisionPolicy(config("mxfp8"), 4).base().name, "mxfp8");
}

TEST(policy, head_can_take_the_runs_recipe) {
  PrecisionConfig p = config("mxfp8");
  p.head = "fp8";
  expect_places(p, 4, {{"head", -1, "mxfp8"}, {"layers.1.attn.out", 1, "mxfp8"}});
}

TEST(policy, fp32_is_fp32_everywhere) {
  PrecisionConfig p = config("fp32");
  p.first_last_layers_bf16 = 1;
  expect_places(p, 4, {{"layers.0.attn.qkv", 0, "fp32"}, {"layers.2.attn.qkv", 2, "fp32"}, {"head", -1, "fp32"}});
}

TEST(policy, first_and_last_layers) {
  PrecisionConfig p = config("tensorwise");
  p.first_last_layers_bf16 = 2;
  p.head = "fp8";
  expect_places(p, 6,
                {{"layers.0.attn.qkv", 0, "bf16"},
                 {"layers.1.mlp.down", 1, "bf16"},
                 {"layers.2.attn.qkv", 2, "tensorwise"},
                 {"layers.3.attn.qkv", 3, "tensorwise"},
                 {"layers.4.attn.qkv", 4, "bf16"},
                 {"layers.5.attn.qkv", 5, "bf16"},
                 {"head", -1, "tensorwise"}});
  for (int64_t wrong : {-1, 4}) {
    p.first_last_layers_bf16 = wrong;
    const std::string text = refusal([&] { PrecisionPolicy(p, 6); });
    expect_has(text, "precision.first_last_layers_bf16");
    expect_has(text, "use 0 to 3");
  }
  p.first_last_layers_bf16 = 3;
  EXPECT_EQ(refusal([&] { PrecisionPolicy(p, 6); }), "");
}

TEST(policy, the_first_rule_that_matches_wins_over_everything_else) {
  PrecisionConfig p = config("blockwise");
  p.first_last_layers_bf16 = 1;
  p.rules = {{"layers.0.attn.*", "mxfp8"}, {"layers.*.attn.qkv", "rowwise"}, {"layers.*.attn.*", "bf16"}, {"head", "tensorwise"}};
  expect_places(p, 4,
                {{"layers.0.attn.qkv", 0, "mxfp8"},    // the first rule, although the second matches and layer 0 is to stay in bf16
                 {"layers.0.mlp.down", 0, "bf16"},     // no rule: first layer
                 {"layers.1.attn.qkv", 1, "rowwise"},
                 {"layers.1.attn.out", 1, "bf16"},
                 {"layers.1.mlp.down", 1, "blockwise"},
                 {"layers.3.attn.qkv", 3, "rowwise"},
                 {"head", -1, "tensorwise"}});
}

TEST(policy, options_of_the_section_apply_to_the_recipes_of_rules) {
  PrecisionConfig p = config("blockwise");
  p.wgrad = "bf16";
  p.pow2_scales = true;
  p.rules = {{"layers.1.*", "tensorwise"}};
  const PrecisionPolicy policy(p, 2);
  const Recipe& r = policy.for_module("layers.1.attn.qkv", 1);
  EXPECT_EQ(r.name, "tensorwise");
  EXPECT_FALSE(r.dy_col.quantized());
  EXPECT_EQ(r.x_row.scale, ScaleKind::pow2);
}

TEST(policy, a_rule_may_name_the_custom_recipe) {
  PrecisionConfig p = custom_of(operand("e2m1"));
  p.recipe = "bf16";
  p.rules = {{"layers.0.*", "custom"}};
  expect_places(p, 2, {{"layers.0.attn.qkv", 0, "custom"}, {"layers.1.attn.qkv", 1, "bf16"}});
}

TEST(policy, fp32_is_not_mixed_with_other_recipes) {
  for (const auto& [base, rule] : {std::pair{"bf16", "fp32"}, std::pair{"fp32", "bf16"}, std::pair{"fp32", "blockwise"}}) {
    PrecisionConfig p = config(base);
    p.rules = {{"layers.0.*", rule}};
    const std::string text = refusal([&] { PrecisionPolicy(p, 2); });
    expect_has(text, "precision.rules: recipe \"" + std::string(rule) + "\" beside \"" + base + "\"");
    expect_has(text, "cannot be mixed");
  }
}

TEST(policy, an_unknown_recipe_in_a_rule_is_refused) {
  PrecisionConfig p = config("bf16");
  p.rules = {{"layers.0.*", "fp8"}};
  expect_has(refusal([&] { PrecisionPolicy(p, 2); }), "unknown recipe \"fp8\"");
}

TEST(policy, a_rule_that_matches_nothing_is_refused) {
  const std::vector<std::string> paths{"layers.0.attn.qkv", "layers.0.attn.out", "head"};
  PrecisionConfig p = config("blockwise");
  p.rules = {{"layers.?.attn.*", "bf16"}, {"layer.0.*", "bf16"}};
  const PrecisionPolicy policy(p, 1);
  const std::string text = refusal([&] { policy.check_rules(paths); });
  expect_has(text, "precision.rules: \"layer.0.*\" matches no module");
  expect_has(text, "layers.0.attn.qkv");
  p.rules.pop_back();
  EXPECT_EQ(refusal([&] { PrecisionPolicy(p, 1).check_rules(paths); }), "");
}

TEST(glob, table) {
  struct Row {
    const char *pattern, *text;
    bool match;
  };
  const Row rows[] = {{"", "", true},
                      {"", "a", false},
                      {"*", "", true},
                      {"*", "anything.at.all", true},
                      {"**", "x", true},
                      {"?", "", false},
                      {"?", "a", true},
                      {"?", "ab", false},
                      {"head", "head", true},
                      {"head", "heads", false},
                      {"head", "hea", false},
                      {"layers.0.*", "layers.0.attn.qkv", true},
                      {"layers.0.*", "layers.01.attn.qkv", false},
                      {"layers.1*", "layers.10.mlp.down", true},
                      {"layers.?.*", "layers.12.mlp.down", false},
                      {"*.mlp.*", "layers.3.mlp.gate_up", true},
                      {"*.mlp", "layers.3.mlp.gate_up", false},
                      {"*down", "layers.3.mlp.down", true},
                      {"a*b*c", "axxbyybzzc", true},
                      {"a*b*c", "axxcyyb", false},
                      {"*aab", "aaaab", true},
                      {"a*a", "a", false},
                      {"*a*", "*", false},
                      {"*?", "", false},
                      {"*?x", "ax", true},
                      {"a*", "a*", true},
                      {"[ab]", "a", false},
                      {"[ab]", "[ab]", true}};
  for (const Row& r : rows) EXPECT_EQ(glob_match(r.pattern, r.text), r.match) << r.pattern << " on " << r.text;
}

TEST(glob, many_stars_take_no_exponential_time) {
  std::string pattern, text(2000, 'a');
  for (int i = 0; i < 40; ++i) pattern += "a*";
  EXPECT_FALSE(glob_match(pattern + "b", text));
  EXPECT_TRUE(glob_match(pattern, text));
}

}  // namespace
