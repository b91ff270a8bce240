// Every combination that is refused, with its reason.
#include <functional>

#include "recipe_support.h"

using namespace recipe_test;

namespace {

struct Refusal {
  const char* what;
  std::function<PrecisionConfig()> config;
  std::vector<const char*> reason;
};

PrecisionConfig with(PrecisionConfig p, const char* key, const CustomOperand& o) {
  p.custom[key] = o;
  return p;
}
PrecisionConfig without(PrecisionConfig p, const char* key) {
  p.custom.erase(key);
  return p;
}
PrecisionConfig named(const char* recipe, void (*change)(PrecisionConfig&)) {
  PrecisionConfig p;
  p.recipe = recipe;
  change(p);
  return p;
}

const CustomOperand plain_e4m3 = operand("e4m3");
const CustomOperand delayed_e4m3 = operand("e4m3", 0, 0, "fp32", "delayed");

const std::vector<Refusal>& refusals() {
  static const std::vector<Refusal> rows = {
      {"unknown recipe",
       [] { return named("blokwise", [](PrecisionConfig&) {}); },
       {"precision.recipe: unknown recipe \"blokwise\"", "use one of: fp32, bf16, delayed, tensorwise, static, rowwise, rowwise_with_gw_hp, blockwise, mxfp8, mxfp6, nvfp4, custom"}},
      {"pure E5M2 by format",
       [] { return named("tensorwise", [](PrecisionConfig& p) { p.format = "e5m2"; }); },
       {"precision.format: pure E5M2 training is not supported: two mantissa bits lose the forward pass", "use hybrid or e4m3"}},
      {"pure E5M2 by operands",
       [] { return custom_of(operand("e5m2")); },
       {"precision (recipe custom): pure E5M2 training is not supported: two mantissa bits lose the forward pass"}},
      {"E5M2 by E5M2 in dgrad",
       [] { return with(with(custom_of(plain_e4m3), "dgrad.dy", operand("e5m2")), "dgrad.w", operand("e5m2")); },
       {"dgrad multiplies E5M2 by E5M2", "no FP8 tensor core has that product"}},
      {"E5M2 by E5M2 in wgrad",
       [] { return with(with(custom_of(plain_e4m3), "wgrad.dy", operand("e5m2")), "wgrad.x", operand("e5m2")); },
       {"wgrad multiplies E5M2 by E5M2"}},
      {"2-D blocks on gradients, dgrad",
       [] { return with(custom_of(plain_e4m3), "dgrad.dy", operand("e4m3", 128, 128)); },
       {"two-dimensional blocks on gradients", "arXiv 2412.19437, appendix B.2"}},
      {"2-D blocks on gradients, wgrad",
       [] { return with(custom_of(operand("e4m3", 1, 32)), "wgrad.dy", operand("e4m3", 32, 32)); },
       {"two-dimensional blocks on gradients", "use [1, n]"}},
      {"2-D blocks everywhere", [] { return custom_of(operand("e4m3", 128, 128)); }, {"two-dimensional blocks on gradients"}},
      {"2-D blocks on gradients, columns of the whole extent",
       [] { return with(custom_of(plain_e4m3), "dgrad.dy", operand("e4m3", 0, 64)); },
       {"two-dimensional blocks on gradients"}},
      {"2-D by 2-D in fprop",
       [] { return with(with(custom_of(plain_e4m3), "fprop.x", operand("e4m3", 128, 128)), "fprop.w", operand("e4m3", 128, 128)); },
       {"fprop has two-dimensional blocks on both operands", "use [1, n] blocks on activations and gradients"}},
      {"one quantized operand, fprop",
       [] { return without(custom_of(plain_e4m3), "fprop.w"); },
       {"fprop has one quantized and one unquantized operand", "no tensor core multiplies FP8 by BF16"}},
      {"one quantized operand, dgrad",
       [] { return with(custom_of(plain_e4m3), "dgrad.dy", operand("bf16")); },
       {"dgrad has one quantized and one unquantized operand"}},
      {"one quantized operand, wgrad",
       [] { return without(custom_of(plain_e4m3), "wgrad.x"); },
       {"wgrad has one quantized and one unquantized operand"}},
      {"delayed with blocks",
       [] {
         return with(with(custom_of(delayed_e4m3), "fprop.x", operand("e4m3", 1, 128, "fp32", "delayed")), "wgrad.x",
                     operand("e4m3", 1, 128, "fp32", "delayed"));
       },
       {"delayed scaling with blocks", "use \"tensor\""}},
      {"delayed with rows", [] { return custom_of(operand("e4m3", 1, 0, "pow2", "delayed")); }, {"delayed scaling with blocks"}},
      {"delayed with E8M0",
       [] { return custom_of(operand("e4m3", 0, 0, "e8m0", "delayed")); },
       {"delayed scaling with E8M0 scales", "use fp32 or pow2"}},
      {"two images of a delayed tensor differ",
       [] { return with(custom_of(delayed_e4m3), "wgrad.x", plain_e4m3); },
       {"delayed and static scaling need the same description for both images of a tensor", "a tensor has one stored scale"}},
      {"delayed images of different formats",
       [] { return with(custom_of(delayed_e4m3), "wgrad.dy", operand("e5m2", 0, 0, "fp32", "delayed")); },
       {"a tensor has one stored scale"}},
      {"empty custom", [] { return named("custom", [](PrecisionConfig&) {}); }, {"precision.custom: the recipe custom needs a description", "fprop"}},
      {"unknown operand",
       [] { return with(custom_of(plain_e4m3), "fprop.y", plain_e4m3); },
       {"precision.custom.fprop.y: no such operand", "fprop.x, fprop.w, dgrad.dy, dgrad.w, wgrad.dy, wgrad.x"}},
      {"unknown format",
       [] { return with(custom_of(plain_e4m3), "fprop.x", operand("e4m4")); },
       {"precision.custom.fprop.x.format: unknown format \"e4m4\"", "use bf16, e4m3, e5m2, e3m2, e2m3 or e2m1"}},
      {"a scale format is no operand format", [] { return with(custom_of(plain_e4m3), "fprop.x", operand("e8m0")); }, {"unknown format \"e8m0\""}},
      {"unknown scale",
       [] { return with(custom_of(plain_e4m3), "fprop.w", operand("e4m3", 0, 0, "fp64")); },
       {"precision.custom.fprop.w.scale: unknown value \"fp64\"", "use one of: fp32, pow2, e8m0, ue4m3"}},
      {"unknown scaling",
       [] { return with(custom_of(plain_e4m3), "fprop.w", operand("e4m3", 0, 0, "fp32", "frozen")); },
       {"precision.custom.fprop.w.scaling: unknown value \"frozen\"", "use one of: current, delayed, static"}},
      {"static without a magnitude",
       [] { return named("static", [](PrecisionConfig& p) { p.static_amax = {1.0, {}, 1.0}; }); },
       {"precision.static_amax.w: static scaling knows no magnitude for w", "precision.calibration_steps"}},
      {"static operand without a magnitude",
       [] { return custom_of(operand("e4m3", 0, 0, "fp32", "static")); },
       {"precision.custom: static scaling knows no magnitude for x"}},
      {"static with blocks",
       [] {
         PrecisionConfig p = custom_of(operand("e4m3", 1, 32, "fp32", "static"));
         p.calibration_steps = 1;
         return p;
       },
       {"static scaling with blocks", "use \"tensor\""}},
      {"a stored scale with E4M3 block scales", [] { return custom_of(operand("e4m3", 0, 0, "ue4m3", "delayed")); }, {"delayed scaling with E4M3 block scales"}},
      {"a stored scale with a Hadamard transform",
       [] {
         CustomOperand o = operand("e4m3", 0, 0, "fp32", "delayed");
         o.hadamard = true;
         return custom_of(o);
       },
       {"delayed scaling with a Hadamard transform"}},
      {"one operand with a Hadamard transform",
       [] {
         CustomOperand o = operand("e4m3", 1, 16);
         o.hadamard = true;
         return with(custom_of(operand("e4m3", 1, 16)), "wgrad.x", o);
       },
       {"wgrad has one operand with a Hadamard transform", "both operands of a product or neither"}},
      {"unknown rounding",
       [] {
         CustomOperand o = plain_e4m3;
         o.rounding = "up";
         return with(custom_of(plain_e4m3), "wgrad.dy", o);
       },
       {"precision.custom.wgrad.dy.rounding: unknown value \"up\"", "use one of: nearest, stochastic"}},
      {"negative block",
       [] { return with(custom_of(plain_e4m3), "fprop.x", operand("e4m3", 1, -128)); },
       {"precision.custom.fprop.x.block: a block has a negative side", "0 for the whole extent"}},
      {"unknown accumulation",
       [] { return named("blockwise", [](PrecisionConfig& p) { p.accumulate.dgrad = "exact"; }); },
       {"precision.accumulate.dgrad: unknown value \"exact\"", "use one of: fast, accurate"}},
  };
  return rows;
}

TEST(refusal, each_wrong_combination_is_refused_with_its_reason) {
  for (const Refusal& row : refusals()) {
    SCOPED_TRACE(row.what);
    const PrecisionConfig p = row.config();
    const std::string text = refusal([&] { make_recipe(p.recipe, p); });
    ASSERT_NE(text, "") << "accepted";
    for (const char* part : row.reason) expect_has(text, part);
  }
}

TEST(refusal, neighbours_of_the_refused_are_accepted) {
  const PrecisionConfig accepted[] = {
      custom_of(plain_e4m3),
      custom_of(delayed_e4m3),
      custom_of(operand("e4m3", 1, 128, "pow2")),
      custom_of(operand("e2m1")),
      custom_of(operand("bf16")),
      with(custom_of(operand("e4m3", 1, 128)), "fprop.w", operand("e4m3", 128, 128)),
      with(with(custom_of(operand("e4m3", 1, 128)), "dgrad.dy", operand("e5m2", 1, 128)), "wgrad.dy", operand("e5m2", 1, 128)),
      with(custom_of(operand("e4m3", 1, 128)), "fprop.x", operand("e5m2", 1, 128)),
      without(without(custom_of(delayed_e4m3), "wgrad.x"), "wgrad.dy"),
  };
  for (const PrecisionConfig& p : accepted) EXPECT_EQ(refusal([&] { make_recipe("custom", p); }), "");
}

}  // namespace
