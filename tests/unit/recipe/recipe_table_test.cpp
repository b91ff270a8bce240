// The named recipes as tables, and what each option of the precision section changes.
#include "recipe_support.h"

using namespace recipe_test;

namespace {

constexpr float flt_max = 3.402823466e+38f, bf16_max = 3.38953139e+38f;
constexpr Accumulate fast = Accumulate::fast, accurate = Accumulate::accurate;
constexpr Dtype e4m3 = Dtype::e4m3, e5m2 = Dtype::e5m2;

struct Block {
  int64_t rows, cols;
};

struct TableRow {
  const char *name, *format;
  Dtype forward, gradient;
  Block x, w, dy;
  ScaleKind scale;
  Scaling scaling;
  float epsilon, overflow;
  bool fp64_divide;
  Accumulate fprop;
};

const TableRow published_rows[] = {
    {"delayed", "", e4m3, e5m2, {0, 0}, {0, 0}, {0, 0}, ScaleKind::fp32, Scaling::delayed, 0, flt_max, false, fast},
    {"delayed", "hybrid", e4m3, e5m2, {0, 0}, {0, 0}, {0, 0}, ScaleKind::fp32, Scaling::delayed, 0, flt_max, false, fast},
    {"delayed", "e4m3", e4m3, e4m3, {0, 0}, {0, 0}, {0, 0}, ScaleKind::fp32, Scaling::delayed, 0, flt_max, false, fast},
    {"tensorwise", "", e4m3, e5m2, {0, 0}, {0, 0}, {0, 0}, ScaleKind::fp32, Scaling::current, 0, flt_max, false, fast},
    {"tensorwise", "e4m3", e4m3, e4m3, {0, 0}, {0, 0}, {0, 0}, ScaleKind::fp32, Scaling::current, 0, flt_max, false, fast},
    {"static", "", e4m3, e5m2, {0, 0}, {0, 0}, {0, 0}, ScaleKind::fp32, Scaling::fixed, 0, flt_max, false, fast},
    {"static", "e4m3", e4m3, e4m3, {0, 0}, {0, 0}, {0, 0}, ScaleKind::fp32, Scaling::fixed, 0, flt_max, false, fast},
    {"rowwise", "", e4m3, e4m3, {1, 0}, {1, 0}, {1, 0}, ScaleKind::pow2, Scaling::current, 1e-12f, flt_max, true, fast},
    {"rowwise", "hybrid", e4m3, e5m2, {1, 0}, {1, 0}, {1, 0}, ScaleKind::pow2, Scaling::current, 1e-12f, flt_max, true, fast},
    {"blockwise", "", e4m3, e4m3, {1, 128}, {128, 128}, {1, 128}, ScaleKind::pow2, Scaling::current, 0, bf16_max, false, accurate},
    {"blockwise", "hybrid", e4m3, e5m2, {1, 128}, {128, 128}, {1, 128}, ScaleKind::pow2, Scaling::current, 0, bf16_max, false, accurate},
    {"mxfp8", "", e4m3, e4m3, {1, 32}, {1, 32}, {1, 32}, ScaleKind::e8m0, Scaling::current, 0, flt_max, false, fast},
    {"mxfp8", "hybrid", e4m3, e5m2, {1, 32}, {1, 32}, {1, 32}, ScaleKind::e8m0, Scaling::current, 0, flt_max, false, fast},
    {"mxfp6", "", Dtype::e2m3, Dtype::e3m2, {1, 32}, {1, 32}, {1, 32}, ScaleKind::e8m0, Scaling::current, 0, flt_max, false, accurate},
};

void expect_spec(const QuantSpec& s, Dtype format, Block block, const TableRow& r) {
  EXPECT_EQ(s.format, format);
  EXPECT_EQ(s.block_rows, block.rows);
  EXPECT_EQ(s.block_cols, block.cols);
  EXPECT_EQ(s.scale, r.scale);
  EXPECT_EQ(s.scaling, r.scaling);
  EXPECT_EQ(s.rounding, Rounding::nearest);
  EXPECT_EQ(s.margin, 0);
  EXPECT_EQ(s.amax_epsilon, r.epsilon);
  EXPECT_EQ(s.overflow_scale, r.overflow);
  EXPECT_EQ(s.fp64_divide, r.fp64_divide);
}

TEST(recipe, fp8_recipes_match_the_table) {
  for (const TableRow& row : published_rows) {
    SCOPED_TRACE(std::string(row.name) + " " + row.format);
    PrecisionConfig p;
    p.recipe = row.name;
    p.format = row.format;
    if (p.recipe == "static") p.calibration_steps = 5;
    const Recipe r = make_recipe(row.name, p);
    EXPECT_EQ(r.name, row.name);
    EXPECT_EQ(r.compute, Dtype::bf16);
    for (const QuantSpec* s : {&r.x_row, &r.x_col}) expect_spec(*s, row.forward, row.x, row);
    for (const QuantSpec* s : {&r.w_row, &r.w_col}) expect_spec(*s, row.forward, row.w, row);
    for (const QuantSpec* s : {&r.dy_row, &r.dy_col}) expect_spec(*s, row.gradient, row.dy, row);
    EXPECT_EQ(r.accumulate, (std::array{row.fprop, accurate, accurate}));
    EXPECT_TRUE(r.quantizes());
    EXPECT_EQ(r.uses(Scaling::delayed), std::string(row.name) == "delayed");
    // E5M2 gradients with MXFP8 are allowed with a warning.
    EXPECT_EQ(r.notes.size(), std::string(row.name) == "mxfp8" && row.gradient == e5m2 ? 1u : 0u);
  }
}

TEST(recipe, unquantized_recipes) {
  for (const auto& [name, compute] : {std::pair{"fp32", Dtype::f32}, std::pair{"bf16", Dtype::bf16}}) {
    const Recipe r = make_recipe(name, {});
    EXPECT_EQ(r.compute, compute);
    EXPECT_FALSE(r.quantizes());
    EXPECT_FALSE(r.uses(Scaling::delayed));
    for (const QuantSpec* s : {&r.x_row, &r.x_col, &r.w_row, &r.w_col, &r.dy_row, &r.dy_col}) {
      EXPECT_EQ(s->format, compute) << name;
      EXPECT_FALSE(s->quantized());
    }
    EXPECT_EQ(r.accumulate, (std::array{accurate, accurate, accurate}));
  }
}

TEST(recipe, names_are_the_documented_ones) {
  EXPECT_EQ(recipe_names(), (std::vector<std::string>{"fp32", "bf16", "delayed", "tensorwise", "static", "rowwise", "rowwise_with_gw_hp", "blockwise", "mxfp8", "mxfp6", "nvfp4", "custom"}));
}

// torchao's rowwise_with_gw_hp: rows in fprop, dY rows by a per-tensor W in dgrad, BF16 in wgrad.
TEST(recipe, rowwise_with_a_high_precision_weight_gradient) {
  const Recipe r = make_recipe("rowwise_with_gw_hp", {}), rowwise = make_recipe("rowwise", {});
  EXPECT_EQ(r.x_row, rowwise.x_row);
  EXPECT_EQ(r.w_row, rowwise.w_row);
  EXPECT_EQ(r.dy_row, rowwise.dy_row);
  EXPECT_EQ(r.w_col.format, e4m3);
  EXPECT_TRUE(r.w_col.per_tensor());
  EXPECT_FALSE(r.x_col.quantized());
  EXPECT_FALSE(r.dy_col.quantized());
  EXPECT_TRUE(r.emulation().empty());
}

// arXiv 2509.25149: 1x16 blocks, 16x16 for weights, E4M3 block scales, stochastic gradients, Hadamard transform in wgrad alone.
TEST(recipe, nvfp4) {
  const Recipe r = make_recipe("nvfp4", {});
  for (const QuantSpec* s : {&r.x_row, &r.x_col, &r.w_row, &r.w_col, &r.dy_row, &r.dy_col}) {
    const bool weight = s == &r.w_row || s == &r.w_col, gradient = s == &r.dy_row || s == &r.dy_col, wgrad = s == &r.x_col || s == &r.dy_col;
    EXPECT_EQ(s->format, Dtype::e2m1);
    EXPECT_EQ(s->block_rows, weight ? 16 : 1);
    EXPECT_EQ(s->block_cols, 16);
    EXPECT_EQ(s->scale, ScaleKind::ue4m3);
    EXPECT_EQ(s->scaling, Scaling::current);
    EXPECT_EQ(s->rounding, gradient ? Rounding::stochastic : Rounding::nearest);
    EXPECT_EQ(s->hadamard, wgrad);
  }
  EXPECT_TRUE(images_share_bytes(r.w_row, r.w_col));
  EXPECT_FALSE(images_share_bytes(r.x_row, r.x_col));
}

TEST(recipe, what_no_hopper_tensor_core_computes_is_labelled) {
  for (const auto& [name, label] : {std::pair{"mxfp6", "e2m3"}, std::pair{"nvfp4", "e2m1"}}) expect_has(make_recipe(name, {}).emulation(), label);
  for (const char* name : {"fp32", "bf16", "delayed", "tensorwise", "rowwise", "blockwise", "mxfp8"}) EXPECT_EQ(make_recipe(name, {}).emulation(), "") << name;
  expect_has(make_recipe("custom", custom_of(operand("e4m3", 1, 16, "ue4m3"))).emulation(), "E4M3 block scales");
}

TEST(recipe, static_magnitudes_go_to_their_operands) {
  PrecisionConfig p;
  p.static_amax = {100.0, 1.5, 0.75};
  p.margin = 1;
  const Recipe r = make_recipe("static", p);
  for (const QuantSpec* s : {&r.x_row, &r.x_col}) EXPECT_EQ(s->static_amax, 100.0f);
  for (const QuantSpec* s : {&r.w_row, &r.w_col}) EXPECT_EQ(s->static_amax, 1.5f);
  for (const QuantSpec* s : {&r.dy_row, &r.dy_col}) EXPECT_EQ(s->static_amax, 0.75f);
  EXPECT_EQ(r.x_row.margin, 1);
  EXPECT_TRUE(r.notes.empty());
  ASSERT_EQ(make_recipe("tensorwise", p).notes.size(), 2u);   // margin and static_amax change nothing there
}

TEST(recipe, scale_kind_option) {
  const std::pair<const char*, ScaleKind> own[] = {{"delayed", ScaleKind::fp32},
                                                   {"tensorwise", ScaleKind::fp32},
                                                   {"rowwise", ScaleKind::pow2},
                                                   {"blockwise", ScaleKind::pow2},
                                                   {"mxfp8", ScaleKind::e8m0}};
  for (const auto& [name, kind] : own) {
    for (std::optional<bool> pow2 : {std::optional<bool>(), std::optional(true), std::optional(false)}) {
      PrecisionConfig p;
      p.pow2_scales = pow2;
      const ScaleKind want = kind == ScaleKind::e8m0 || !pow2 ? kind : *pow2 ? ScaleKind::pow2 : ScaleKind::fp32;
      const Recipe r = make_recipe(name, p);
      for (const QuantSpec* s : {&r.x_row, &r.x_col, &r.w_row, &r.w_col, &r.dy_row, &r.dy_col}) EXPECT_EQ(s->scale, want) << name;
    }
  }
}

TEST(recipe, epsilon_option) {
  PrecisionConfig p;
  p.amax_epsilon = 0.25;
  for (const char* name : {"tensorwise", "rowwise", "blockwise"}) {
    const Recipe r = make_recipe(name, p);
    for (const QuantSpec* s : {&r.x_row, &r.x_col, &r.w_row, &r.w_col, &r.dy_row, &r.dy_col}) EXPECT_EQ(s->amax_epsilon, 0.25f) << name;
  }
  p.amax_epsilon = 0.0;
  EXPECT_EQ(make_recipe("rowwise", p).x_row.amax_epsilon, 0.0f);  // an explicit 0 replaces the recipe's 1e-12
  EXPECT_EQ(make_recipe("bf16", p).x_row.amax_epsilon, 0.0f);
}

TEST(recipe, margin_is_for_delayed_scaling_only) {
  PrecisionConfig p;
  p.margin = 3;
  EXPECT_EQ(make_recipe("delayed", p).x_row.margin, 3);
  EXPECT_EQ(make_recipe("delayed", p).dy_col.margin, 3);
  EXPECT_EQ(make_recipe("tensorwise", p).x_row.margin, 0);
  p.margin = -2;
  EXPECT_EQ(make_recipe("delayed", p).w_row.margin, -2);
}

TEST(recipe, gradient_products_can_stay_in_bf16) {
  for (const char* name : {"delayed", "tensorwise", "rowwise", "blockwise", "mxfp8"}) {
    for (const char* dgrad : {"fp8", "bf16"}) {
      for (const char* wgrad : {"fp8", "bf16"}) {
        PrecisionConfig p;
        p.dgrad = dgrad;
        p.wgrad = wgrad;
        const Recipe r = make_recipe(name, p);
        const bool d = p.dgrad == "fp8", w = p.wgrad == "fp8";
        EXPECT_TRUE(r.x_row.quantized() && r.w_row.quantized()) << name;
        EXPECT_EQ(r.dy_row.quantized(), d) << name;
        EXPECT_EQ(r.w_col.quantized(), d) << name;
        EXPECT_EQ(r.dy_col.quantized(), w) << name;
        EXPECT_EQ(r.x_col.quantized(), w) << name;
        if (!d) {
          EXPECT_EQ(r.dy_row.format, Dtype::bf16);
        }
        if (!w) {
          EXPECT_EQ(r.x_col.format, Dtype::bf16);
        }
      }
    }
  }
  PrecisionConfig p;
  p.dgrad = p.wgrad = "bf16";
  EXPECT_EQ(make_recipe("fp32", p).x_col.format, Dtype::f32);  // the unquantized format of the recipe, whatever the word
}

TEST(recipe, accumulation_option) {
  PrecisionConfig p;
  p.accumulate = {"accurate", "fast", ""};
  EXPECT_EQ(make_recipe("tensorwise", p).accumulate, (std::array{accurate, fast, accurate}));
  p.accumulate = {"", "", "fast"};
  EXPECT_EQ(make_recipe("tensorwise", p).accumulate, (std::array{fast, accurate, fast}));
  EXPECT_EQ(make_recipe("blockwise", p).accumulate, (std::array{accurate, accurate, fast}));
}

TEST(recipe, custom_operands_land_in_their_places) {
  PrecisionConfig p;
  p.recipe = "custom";
  p.custom["fprop.x"] = operand("e4m3", 1, 7, "pow2");
  p.custom["fprop.w"] = operand("e3m2", 7, 7, "fp32");
  p.custom["dgrad.dy"] = operand("e5m2", 1, 0, "e8m0");
  p.custom["dgrad.w"] = operand("e2m1", 0, 0, "fp32");
  p.custom["wgrad.dy"] = operand("e2m3", 1, 32, "e8m0");
  p.custom["wgrad.x"] = operand("e4m3", 0, 64, "pow2");
  p.custom["wgrad.dy"].rounding = "stochastic";
  p.custom["wgrad.dy"].amax_epsilon = 0.5;
  const Recipe r = make_recipe("custom", p);
  const auto is = [](const QuantSpec& s, Dtype format, int64_t rows_, int64_t cols_, ScaleKind scale) {
    return s.format == format && s.block_rows == rows_ && s.block_cols == cols_ && s.scale == scale && s.scaling == Scaling::current;
  };
  EXPECT_TRUE(is(r.x_row, e4m3, 1, 7, ScaleKind::pow2));
  EXPECT_TRUE(is(r.w_row, Dtype::e3m2, 7, 7, ScaleKind::fp32));
  EXPECT_TRUE(is(r.dy_row, e5m2, 1, 0, ScaleKind::e8m0));
  EXPECT_TRUE(is(r.w_col, Dtype::e2m1, 0, 0, ScaleKind::fp32));
  EXPECT_TRUE(is(r.dy_col, Dtype::e2m3, 1, 32, ScaleKind::e8m0));
  EXPECT_TRUE(is(r.x_col, e4m3, 0, 64, ScaleKind::pow2));
  EXPECT_EQ(r.dy_col.rounding, Rounding::stochastic);
  EXPECT_EQ(r.dy_row.rounding, Rounding::nearest);
  EXPECT_EQ(r.dy_col.amax_epsilon, 0.5f);
  EXPECT_EQ(r.accumulate, (std::array{accurate, accurate, accurate}));
}

TEST(recipe, custom_with_the_forward_product_only) {
  PrecisionConfig p;
  p.recipe = "custom";
  p.custom["fprop.x"] = p.custom["fprop.w"] = operand("e4m3");
  const Recipe r = make_recipe("custom", p);
  EXPECT_TRUE(r.x_row.quantized() && r.w_row.quantized());
  for (const QuantSpec* s : {&r.dy_row, &r.w_col, &r.dy_col, &r.x_col}) EXPECT_EQ(s->format, Dtype::bf16);
}

TEST(recipe, custom_delayed_keeps_its_margin_unless_the_section_sets_one) {
  PrecisionConfig p = custom_of(operand("e4m3", 0, 0, "pow2", "delayed"));
  for (auto& [key, o] : p.custom) o.margin = 2;
  EXPECT_EQ(make_recipe("custom", p).x_row.margin, 2);
  EXPECT_TRUE(make_recipe("custom", p).uses(Scaling::delayed));
  p.margin = 5;
  EXPECT_EQ(make_recipe("custom", p).x_row.margin, 5);
}

TEST(spec, squareness_decides_whether_bytes_may_be_transposed) {
  for (const auto& [rows_, cols_, square] :
       {std::tuple{0, 0, true}, {128, 128, true}, {32, 32, true}, {1, 128, false}, {1, 0, false}, {0, 64, false}, {1, 1, true}}) {
    QuantSpec s;
    s.block_rows = rows_;
    s.block_cols = cols_;
    EXPECT_EQ(s.square(), square) << rows_ << "x" << cols_;
    EXPECT_EQ(s.per_tensor(), rows_ == 0 && cols_ == 0);
  }
}

}  // namespace
