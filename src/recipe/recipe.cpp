#include "recipe/recipe.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace octet {
namespace {

Error config_error(std::string what, std::string where, std::string fix = {}) {
  return Error(ExitCode::config, std::move(what), std::move(where), std::move(fix));
}

constexpr float bf16_max = 3.38953139e+38f;  // 0x7F7F0000

// The six operands of a recipe whose images all share one block shape.
void fill(Recipe& r, const QuantSpec& x, const QuantSpec& w, const QuantSpec& dy) {
  r.x_row = r.x_col = x;
  r.w_row = r.w_col = w;
  r.dy_row = r.dy_col = dy;
}

void each_spec(Recipe& r, auto&& f) {
  for (QuantSpec* s : {&r.x_row, &r.x_col, &r.w_row, &r.w_col, &r.dy_row, &r.dy_col}) f(*s);
}

constexpr std::array<Accumulate, 3> fast_fprop{Accumulate::fast, Accumulate::accurate, Accumulate::accurate};

// The table of named recipes. Gradients are E5M2 in the hybrid format; the defaults are those of the source of each recipe.
Recipe named(const std::string& name, bool hybrid) {
  Recipe r;
  r.name = name;
  const Dtype dy = hybrid ? Dtype::e5m2 : Dtype::e4m3;
  const Dtype e4m3 = Dtype::e4m3;
  if (name == "fp32") {
    r.compute = Dtype::f32;
    each_spec(r, [](QuantSpec& s) { s.format = Dtype::f32; });
  } else if (name == "delayed" || name == "tensorwise" || name == "static") {
    fill(r, block_spec(e4m3, 0, 0, ScaleKind::fp32), block_spec(e4m3, 0, 0, ScaleKind::fp32), block_spec(dy, 0, 0, ScaleKind::fp32));
    if (name == "delayed") each_spec(r, [](QuantSpec& s) { s.scaling = Scaling::delayed; });
    if (name == "static") each_spec(r, [](QuantSpec& s) { s.scaling = Scaling::fixed; });
    r.accumulate = fast_fprop;
  } else if (name == "rowwise" || name == "rowwise_with_gw_hp") {
    fill(r, block_spec(e4m3, 1, 0, ScaleKind::pow2), block_spec(e4m3, 1, 0, ScaleKind::pow2), block_spec(dy, 1, 0, ScaleKind::pow2));
    each_spec(r, [](QuantSpec& s) {
      s.amax_epsilon = 1e-12f;
      s.fp64_divide = true;
    });
    if (name == "rowwise_with_gw_hp") {   // torchao: the weight of dgrad keeps one scale a tensor, the weight gradient is not quantized
      r.w_col.block_rows = 0;
      r.x_col = r.dy_col = QuantSpec{};
    }
    r.accumulate = fast_fprop;
  } else if (name == "blockwise") {
    fill(r, block_spec(e4m3, 1, 128, ScaleKind::pow2), block_spec(e4m3, 128, 128, ScaleKind::pow2), block_spec(dy, 1, 128, ScaleKind::pow2));
    each_spec(r, [](QuantSpec& s) { s.overflow_scale = bf16_max; });
  } else if (name == "mxfp8") {
    fill(r, block_spec(e4m3, 1, 32, ScaleKind::e8m0), block_spec(e4m3, 1, 32, ScaleKind::e8m0), block_spec(dy, 1, 32, ScaleKind::e8m0));
    r.accumulate = fast_fprop;
    if (hybrid) r.notes.push_back("mxfp8 with E5M2 gradients (hybrid) has diverged for others; e4m3 is the tested format");
  } else if (name == "mxfp6") {
    fill(r, block_spec(Dtype::e2m3, 1, 32, ScaleKind::e8m0), block_spec(Dtype::e2m3, 1, 32, ScaleKind::e8m0), block_spec(Dtype::e3m2, 1, 32, ScaleKind::e8m0));
  } else if (name == "nvfp4") {
    fill(r, block_spec(Dtype::e2m1, 1, 16, ScaleKind::ue4m3), block_spec(Dtype::e2m1, 16, 16, ScaleKind::ue4m3), block_spec(Dtype::e2m1, 1, 16, ScaleKind::ue4m3));
    r.dy_row.rounding = r.dy_col.rounding = Rounding::stochastic;
    r.x_col.hadamard = r.dy_col.hadamard = true;
  }
  return r;
}

Dtype format_of(const std::string& s, const std::string& where) {
  for (Dtype d : {Dtype::bf16, Dtype::e4m3, Dtype::e5m2, Dtype::e3m2, Dtype::e2m3, Dtype::e2m1}) {
    if (s == octet::name(d)) return d;
  }
  throw config_error(fmt::format("unknown format \"{}\"", s), where, "use bf16, e4m3, e5m2, e3m2, e2m3 or e2m1");
}

template <class E>
E choice(const std::string& s, std::initializer_list<std::pair<const char*, E>> options, const std::string& where) {
  std::string known;
  for (const auto& [text, value] : options) {
    if (s == text) return value;
    known += (known.empty() ? "" : ", ") + std::string(text);
  }
  throw config_error(fmt::format("unknown value \"{}\"", s), where, "use one of: " + known);
}

QuantSpec custom_spec(const CustomOperand& c, const std::string& where) {
  QuantSpec s = block_spec(format_of(c.format, where + ".format"), c.block_rows, c.block_cols,
                           choice<ScaleKind>(c.scale, {{"fp32", ScaleKind::fp32}, {"pow2", ScaleKind::pow2}, {"e8m0", ScaleKind::e8m0}, {"ue4m3", ScaleKind::ue4m3}}, where + ".scale"));
  s.scaling = choice<Scaling>(c.scaling, {{"current", Scaling::current}, {"delayed", Scaling::delayed}, {"static", Scaling::fixed}}, where + ".scaling");
  s.rounding = choice<Rounding>(c.rounding, {{"nearest", Rounding::nearest}, {"stochastic", Rounding::stochastic}}, where + ".rounding");
  s.margin = static_cast<int32_t>(c.margin);
  s.static_amax = static_cast<float>(c.static_amax.value_or(0));
  s.hadamard = c.hadamard;
  s.amax_epsilon = static_cast<float>(c.amax_epsilon);
  if (s.block_rows < 0 || s.block_cols < 0) throw config_error("a block has a negative side", where + ".block", "use [rows, length], 0 for the whole extent");
  return s;
}

Recipe custom_recipe(const PrecisionConfig& p) {
  Recipe r;
  r.name = "custom";
  if (p.custom.empty()) {
    throw config_error("the recipe custom needs a description", "precision.custom", "give at least {\"fprop\": {\"x\": {...}, \"w\": {...}}}");
  }
  const std::pair<const char*, QuantSpec Recipe::*> slots[] = {{"fprop.x", &Recipe::x_row},   {"fprop.w", &Recipe::w_row},   {"dgrad.dy", &Recipe::dy_row},
                                                               {"dgrad.w", &Recipe::w_col}, {"wgrad.dy", &Recipe::dy_col}, {"wgrad.x", &Recipe::x_col}};
  for (const auto& [key, operand] : p.custom) {
    bool known = false;
    for (const auto& [slot, member] : slots) {
      if (key != slot) continue;
      r.*member = custom_spec(operand, "precision.custom." + key);
      known = true;
    }
    if (!known) throw config_error("no such operand", "precision.custom." + key, "use fprop.x, fprop.w, dgrad.dy, dgrad.w, wgrad.dy, wgrad.x");
  }
  return r;
}

void apply_options(Recipe& r, const PrecisionConfig& p) {
  const auto set = [](Accumulate& a, const std::string& s, const char* where) {
    if (!s.empty()) a = choice<Accumulate>(s, {{"fast", Accumulate::fast}, {"accurate", Accumulate::accurate}}, where);
  };
  set(r.accumulate[0], p.accumulate.fprop, "precision.accumulate.fprop");
  set(r.accumulate[1], p.accumulate.dgrad, "precision.accumulate.dgrad");
  set(r.accumulate[2], p.accumulate.wgrad, "precision.accumulate.wgrad");
  each_spec(r, [&](QuantSpec& s) {
    if (!s.quantized()) return;
    if (p.pow2_scales && (s.scale == ScaleKind::fp32 || s.scale == ScaleKind::pow2)) s.scale = *p.pow2_scales ? ScaleKind::pow2 : ScaleKind::fp32;
    if (p.amax_epsilon) s.amax_epsilon = static_cast<float>(*p.amax_epsilon);
    if (s.stored_scale() && p.margin != 0) s.margin = static_cast<int32_t>(p.margin);
  });
  if (r.name == "static") {
    r.x_row.static_amax = r.x_col.static_amax = static_cast<float>(p.static_amax.x.value_or(0));
    r.w_row.static_amax = r.w_col.static_amax = static_cast<float>(p.static_amax.w.value_or(0));
    r.dy_row.static_amax = r.dy_col.static_amax = static_cast<float>(p.static_amax.dy.value_or(0));
  }
  if (p.dgrad == "bf16") r.dy_row.format = r.w_col.format = r.compute;
  if (p.wgrad == "bf16") r.dy_col.format = r.x_col.format = r.compute;
}

// Options that were given and change nothing: said once, never silently dropped.
void note_unused_options(Recipe& r, const PrecisionConfig& p) {
  const auto unused = [&](bool given, const char* key, const char* why) {
    if (given) r.notes.push_back(fmt::format("precision.{} has no effect on recipe {}: {}", key, r.name, why));
  };
  const bool narrower = r.name == "mxfp6" || r.name == "nvfp4";
  unused(!p.format.empty() && r.name == "custom", "format", "each operand names its own");
  unused(!p.format.empty() && !r.quantizes(), "format", "nothing is quantized");
  unused(!p.format.empty() && narrower, "format", "its elements are not FP8");
  unused(p.margin != 0 && !r.uses(Scaling::delayed) && !r.uses(Scaling::fixed), "margin", "it belongs to delayed and static scaling");
  unused(p.pow2_scales.has_value() && (r.name == "mxfp8" || r.name == "mxfp6"), "pow2_scales", "E8M0 scales are powers of two");
  unused(p.pow2_scales.has_value() && r.name == "nvfp4", "pow2_scales", "its block scales are E4M3");
  unused(p.amax_compute_algo != "max" && !r.uses(Scaling::delayed), "amax_compute_algo", "it belongs to delayed scaling");
  unused(p.amax_epsilon.has_value() && (r.name == "delayed" || r.name == "static"), "amax_epsilon", "its scales do not come from the tensor at hand");
  const bool any_static_amax = p.static_amax.x || p.static_amax.w || p.static_amax.dy;
  unused(any_static_amax && r.name != "static", "static_amax", r.name == "custom" ? "each operand names its own" : "it belongs to recipe static");
  if (r.quantizes()) return;
  const char* none = "nothing is quantized";
  unused(p.pow2_scales.has_value(), "pow2_scales", none);
  unused(p.amax_epsilon.has_value(), "amax_epsilon", none);
  unused(!p.accumulate.fprop.empty() || !p.accumulate.dgrad.empty() || !p.accumulate.wgrad.empty(), "accumulate", none);
  unused(p.dgrad == "bf16", "dgrad", none);
  unused(p.wgrad == "bf16", "wgrad", none);
}

void check(const Recipe& r) {
  const std::string where = "precision (recipe " + r.name + ")";
  if (r.x_row.format == Dtype::e5m2 && r.w_row.format == Dtype::e5m2) {
    throw config_error("pure E5M2 training is not supported: two mantissa bits lose the forward pass", where, "use hybrid or e4m3");
  }
  for (const QuantSpec* s : {&r.dy_row, &r.dy_col}) {
    if (s->quantized() && s->block_rows != 1 && !s->per_tensor()) {
      throw config_error("two-dimensional blocks on gradients", where, "use [1, n]: 128x128 blocks on dY diverged in DeepSeek-V3's ablation (arXiv 2412.19437, appendix B.2)");
    }
  }
  const std::pair<const QuantSpec*, const QuantSpec*> gemms[] = {{&r.x_row, &r.w_row}, {&r.dy_row, &r.w_col}, {&r.dy_col, &r.x_col}};
  const char* gemm_names[] = {"fprop", "dgrad", "wgrad"};
  for (int g = 0; g < 3; ++g) {
    const auto& [a, b] = gemms[g];
    if (a->quantized() != b->quantized()) {
      throw config_error(fmt::format("{} has one quantized and one unquantized operand", gemm_names[g]), where, "quantize both or neither: no tensor core multiplies FP8 by BF16");
    }
    if (a->format == Dtype::e5m2 && b->format == Dtype::e5m2) {
      throw config_error(fmt::format("{} multiplies E5M2 by E5M2", gemm_names[g]), where, "no FP8 tensor core has that product; use E4M3 for one of the operands");
    }
    if (a->quantized() && a->hadamard != b->hadamard) {
      throw config_error(fmt::format("{} has one operand with a Hadamard transform", gemm_names[g]), where, "transform both operands of a product or neither");
    }
    const bool two_dimensional = a->quantized() && a->block_rows != 1 && !a->per_tensor() && b->quantized() && b->block_rows != 1 && !b->per_tensor();
    if (two_dimensional) throw config_error(fmt::format("{} has two-dimensional blocks on both operands", gemm_names[g]), where, "use [1, n] blocks on activations and gradients");
  }
  for (const QuantSpec* s : {&r.x_row, &r.x_col, &r.w_row, &r.w_col, &r.dy_row, &r.dy_col}) {
    if (!s->quantized()) continue;
    if (!s->stored_scale()) continue;
    const std::string kind = s->scaling == Scaling::delayed ? "delayed" : "static";
    if (!s->per_tensor()) throw config_error(kind + " scaling with blocks", where, kind + " scaling keeps one scale a tensor; use \"tensor\"");
    if (s->scale == ScaleKind::e8m0) throw config_error(kind + " scaling with E8M0 scales", where, "use fp32 or pow2");
    if (s->scale == ScaleKind::ue4m3) throw config_error(kind + " scaling with E4M3 block scales", where, "use fp32 or pow2");
    if (s->hadamard) throw config_error(kind + " scaling with a Hadamard transform", where, "its two images have different magnitudes; use current scaling");
  }
  const auto same_stored = [&](const QuantSpec& a, const QuantSpec& b) {
    if (a.quantized() && b.quantized() && (a.stored_scale() || b.stored_scale()) && !(a == b)) {
      throw config_error("delayed and static scaling need the same description for both images of a tensor", where, "a tensor has one stored scale");
    }
  };
  same_stored(r.x_row, r.x_col);
  same_stored(r.w_row, r.w_col);
  same_stored(r.dy_row, r.dy_col);
}

// A static scale needs a magnitude from somewhere.
void check_static(const Recipe& r, const PrecisionConfig& p) {
  if (p.calibration_steps > 0) return;
  const std::pair<const char*, const QuantSpec*> operands[] = {{"x", &r.x_row}, {"x", &r.x_col}, {"w", &r.w_row}, {"w", &r.w_col}, {"dy", &r.dy_row}, {"dy", &r.dy_col}};
  for (const auto& [role, s] : operands) {
    if (!s->quantized() || s->scaling != Scaling::fixed || s->static_amax > 0) continue;
    throw config_error(fmt::format("static scaling knows no magnitude for {}", role), r.name == "custom" ? "precision.custom" : fmt::format("precision.static_amax.{}", role),
                       "give one, or let the run collect them: precision.calibration_steps, for example 20");
  }
}

}  // namespace

QuantSpec block_spec(Dtype format, int64_t rows, int64_t cols, ScaleKind scale) {
  QuantSpec s;
  s.format = format;
  s.block_rows = rows;
  s.block_cols = cols;
  s.scale = scale;
  return s;
}

bool Recipe::uses(Scaling scaling) const {
  for (const QuantSpec* s : {&x_row, &x_col, &w_row, &w_col, &dy_row, &dy_col}) {
    if (s->quantized() && s->scaling == scaling) return true;
  }
  return false;
}

std::string Recipe::emulation() const {
  for (const QuantSpec* s : {&x_row, &x_col, &w_row, &w_col, &dy_row, &dy_col}) {
    if (!s->quantized()) continue;
    if (s->format != Dtype::e4m3 && s->format != Dtype::e5m2) return fmt::format("no Hopper tensor core multiplies {}", octet::name(s->format));
    if (s->scale == ScaleKind::ue4m3) return "no Hopper tensor core applies E4M3 block scales";
  }
  return {};
}

bool images_share_bytes(const QuantSpec& row, const QuantSpec& col) {
  return row.quantized() && row == col && row.square() && row.rounding == Rounding::nearest && !row.hadamard;
}

const std::vector<std::string>& recipe_names() {
  static const std::vector<std::string> names{"fp32", "bf16", "delayed", "tensorwise", "static", "rowwise", "rowwise_with_gw_hp", "blockwise", "mxfp8", "mxfp6", "nvfp4", "custom"};
  return names;
}

Recipe make_recipe(const std::string& name, const PrecisionConfig& p) {
  const auto& known = recipe_names();
  if (std::find(known.begin(), known.end(), name) == known.end()) {
    throw config_error(fmt::format("unknown recipe \"{}\"", name), "precision.recipe", fmt::format("use one of: {}", fmt::join(known, ", ")));
  }
  if (p.format == "e5m2") throw config_error("pure E5M2 training is not supported: two mantissa bits lose the forward pass", "precision.format", "use hybrid or e4m3");
  const bool per_tensor = name == "delayed" || name == "tensorwise" || name == "static";
  const bool hybrid = p.format.empty() ? per_tensor : p.format == "hybrid";
  Recipe r = name == "custom" ? custom_recipe(p) : named(name, hybrid);
  apply_options(r, p);
  note_unused_options(r, p);
  check(r);
  check_static(r, p);
  return r;
}

bool glob_match(const std::string& pattern, const std::string& text) {
  size_t p = 0, t = 0, star = std::string::npos, resume = 0;
  while (t < text.size()) {
    if (p < pattern.size() && (pattern[p] == '?' || (pattern[p] == text[t] && pattern[p] != '*'))) {
      ++p, ++t;
    } else if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = t;
    } else if (star != std::string::npos) {
      p = star + 1;
      t = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

PrecisionPolicy::PrecisionPolicy(const PrecisionConfig& p, int64_t num_layers) : config_(p), num_layers_(num_layers), base_(make_recipe(p.recipe, p)), bf16_(make_recipe("bf16", {})) {
  for (const auto& rule : p.rules) {
    PrecisionConfig own = p;
    own.recipe = rule.recipe;
    Recipe r = make_recipe(rule.recipe, own);
    if (r.compute != base_.compute) {
      throw config_error(fmt::format("recipe \"{}\" beside \"{}\"", rule.recipe, p.recipe), "precision.rules", "fp32 keeps every activation in FP32 and cannot be mixed with other recipes");
    }
    rules_.emplace_back(rule.match, std::move(r));
  }
  const auto stores = [](const Recipe& r) { return r.uses(Scaling::delayed) || r.uses(Scaling::fixed); };
  if (p.calibration_steps > 0 && !stores(base_) && std::none_of(rules_.begin(), rules_.end(), [&](const auto& rule) { return stores(rule.second); })) {
    base_.notes.push_back(fmt::format("precision.calibration_steps has no effect on recipe {}: it belongs to delayed and static scaling", base_.name));
  }
  if (p.first_last_layers_bf16 < 0 || 2 * p.first_last_layers_bf16 > num_layers) {
    throw config_error(fmt::format("{} layers at each end of {} layers", p.first_last_layers_bf16, num_layers), "precision.first_last_layers_bf16", fmt::format("use 0 to {}", num_layers / 2));
  }
}

const Recipe& PrecisionPolicy::for_module(const std::string& path, int64_t layer) const {
  for (const auto& [pattern, recipe] : rules_) {
    if (glob_match(pattern, path)) return recipe;
  }
  if (base_.compute == Dtype::f32) return base_;
  const int64_t n = config_.first_last_layers_bf16;
  if (layer >= 0 && (layer < n || layer >= num_layers_ - n)) return bf16_;
  if (layer < 0 && config_.head == "bf16") return bf16_;
  return base_;
}

void PrecisionPolicy::check_rules(const std::vector<std::string>& paths) const {
  for (const auto& [pattern, recipe] : rules_) {
    bool used = false;
    for (const auto& path : paths) used = used || glob_match(pattern, path);
    if (!used) throw config_error(fmt::format("\"{}\" matches no module", pattern), "precision.rules", fmt::format("module paths look like {}", paths.empty() ? "layers.0.attn.qkv" : paths.front()));
  }
}

}  // namespace octet
