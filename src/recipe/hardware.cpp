#include "recipe/hardware.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "core/error.h"

namespace octet {
namespace {

constexpr Capability first_bf16{8, 0}, ada{8, 9}, hopper{9, 0}, blackwell{10, 0};

bool fp8(Dtype d) { return d == Dtype::e4m3 || d == Dtype::e5m2; }
bool blocks(ScaleMode m) { return m == ScaleMode::block_1x128 || m == ScaleMode::block_128x128; }

const char* words(ScaleMode m) {
  constexpr const char* texts[] = {"not at all", "by tensor", "by row", "by 1x128 blocks", "by 128x128 blocks", "by other blocks", "by 1x32 blocks", "by 1x16 blocks"};
  return texts[static_cast<size_t>(m)];
}

// What no emulation makes right.
std::string why_impossible(const Product& p, Capability on) {
  if (p.out != Dtype::bf16 && p.out != Dtype::f32) return fmt::format("products have bf16 or f32 results, not {}", name(p.out));
  if (p.a.quantized() != p.b.quantized()) return "one operand is quantized and the other is not";
  if (on < first_bf16) return "octet's kernels need the BF16 tensor cores of compute capability 8.0";
  if (p.a.quantized() && on < ada) return "octet's kernels need the FP8 conversions of compute capability 8.9";
  if (p.a.format == Dtype::e5m2 && p.b.format == Dtype::e5m2) return "no FP8 tensor core multiplies e5m2 by e5m2";
  return {};
}

std::array<Product, 3> products(const Recipe& r) {
  return {{{r.x_row, r.w_row, r.compute}, {r.dy_row, r.w_col, r.compute}, {r.dy_col, r.x_col, Dtype::f32}}};
}

// Recipes by name that are native on `on`, for remedies.
std::string native_names(Capability on) {
  PrecisionConfig p;
  p.calibration_steps = 1;   // `static` wants magnitudes or this
  std::string list;
  for (const std::string& n : recipe_names()) {
    if (n == "custom" || recipe_support(make_recipe(n, p), on, false).whole.support != Support::native) continue;
    list += (list.empty() ? "" : ", ") + n;
  }
  return list;
}

}  // namespace

std::string name(Capability c) { return fmt::format("{}.{}", c.major, c.minor); }

const std::vector<Capability>& known_capabilities() {
  static const std::vector<Capability> known{{8, 0}, ada, hopper, blackwell, {12, 0}};
  return known;
}

ScaleMode scale_mode(ScaleKind scale, int64_t rows, int64_t cols) {
  if (scale == ScaleKind::e8m0 && rows == 1 && cols == 32) return ScaleMode::mx_1x32;
  if (scale == ScaleKind::ue4m3 && cols == 16 && (rows == 1 || rows == 16)) return ScaleMode::nv_1x16;
  if (rows == 0 && cols == 0) return ScaleMode::tensor;
  if (rows == 1 && cols == 0) return ScaleMode::row;
  if (rows == 1 && cols == 128) return ScaleMode::block_1x128;
  if (rows == 128 && cols == 128) return ScaleMode::block_128x128;
  return ScaleMode::other;
}

ScaleMode scale_mode(const QuantSpec& s) { return s.quantized() ? scale_mode(s.scale, s.block_rows, s.block_cols) : ScaleMode::none; }

std::string why_no_product(Dtype a, ScaleMode scale_a, Dtype b, ScaleMode scale_b, Capability on) {
  if (scale_a == ScaleMode::none && scale_b == ScaleMode::none) return on < first_bf16 ? "BF16 tensor cores begin with compute capability 8.0" : "";
  if (a == Dtype::e2m1 && b == Dtype::e2m1 && scale_a == ScaleMode::nv_1x16 && scale_b == ScaleMode::nv_1x16) {
    return on < blackwell ? "NVFP4 products begin with compute capability 10.0" : "";
  }
  if (!fp8(a) || !fp8(b)) return fmt::format("cuBLASLt does not multiply {} by {} with these scales", name(a), name(b));
  if (a == Dtype::e5m2 && b == Dtype::e5m2) return "cuBLASLt does not multiply e5m2 by e5m2";
  if (on < ada) return "FP8 tensor cores begin with compute capability 8.9";
  const bool mx = scale_a == ScaleMode::mx_1x32 && scale_b == ScaleMode::mx_1x32;
  if (mx) return on < blackwell ? "MXFP8 products begin with compute capability 10.0" : "";
  const bool other = std::max(scale_a, scale_b) >= ScaleMode::other;
  if (other) return "cuBLASLt has FP32 scales by tensor, row, 1x128 and 128x128 blocks only";
  const bool pair = blocks(scale_a) ? blocks(scale_b) && (scale_a == ScaleMode::block_1x128 || scale_b == ScaleMode::block_1x128) : scale_a == scale_b;
  if (!pair) return fmt::format("cuBLASLt does not scale one operand {} and the other {}", words(scale_a), words(scale_b));
  if (scale_a != ScaleMode::tensor && on != hopper) return fmt::format("cuBLASLt scales {} on compute capability 9.0 only", scale_a == ScaleMode::row ? "by row" : "by blocks of 128");
  return {};
}

const char* name(Support s) {
  constexpr const char* names[] = {"native", "emulated", "refused"};
  return names[static_cast<size_t>(s)];
}

Verdict product_support(const Product& p, Capability on, bool emulate) {
  if (std::string why = why_impossible(p, on); !why.empty()) return {Support::refused, std::move(why)};
  std::string why = why_no_product(p.a.format, scale_mode(p.a), p.b.format, scale_mode(p.b), on);
  if (why.empty()) return {};
  return {emulate ? Support::emulated : Support::refused, std::move(why)};
}

RecipeSupport recipe_support(const Recipe& r, Capability on, bool emulate) {
  constexpr const char* gemms[] = {"fprop", "dgrad", "wgrad"};
  RecipeSupport s;
  const auto all = products(r);
  for (size_t g = 0; g < 3; ++g) {
    s.products[g] = product_support(all[g], on, emulate);
    s.whole.support = std::max(s.whole.support, s.products[g].support);
  }
  for (size_t g = 0; g < 3; ++g) {
    const std::string& reason = s.products[g].reason;
    const auto same = [&](const Verdict& v) { return v.reason == reason; };
    if (reason.empty() || std::any_of(s.products.begin(), s.products.begin() + static_cast<std::ptrdiff_t>(g), same)) continue;   // said with an earlier product
    std::string who;
    for (size_t other = g; other < 3; ++other) {
      if (same(s.products[other])) who += (who.empty() ? "" : ", ") + std::string(gemms[other]);
    }
    const bool every = std::all_of(s.products.begin(), s.products.end(), same);
    s.whole.reason += (s.whole.reason.empty() ? "" : "; ") + (every ? reason : who + ": " + reason);
  }
  return s;
}

void check_recipe(const Recipe& r, Capability on, bool emulate, const std::string& where) {
  const Verdict v = recipe_support(r, on, emulate).whole;
  if (v.support != Support::refused) return;
  const std::string native = native_names(on);
  const std::string choose = native.empty() ? "use another GPU or run.device cpu" : "choose " + native;
  const bool helps = recipe_support(r, on, true).whole.support != Support::refused;
  throw Error(ExitCode::config, fmt::format("recipe {} is not native on compute capability {}: {}", r.name, name(on), v.reason), where, (helps ? "set precision.emulate, or " : "") + choose);
}

const Recipe& recipe_of(const PrecisionPolicy& policy, const std::string& module) {
  constexpr std::string_view prefix = "layers.";
  int64_t layer = -1;
  if (module.starts_with(prefix)) std::from_chars(module.data() + prefix.size(), module.data() + module.size(), layer);
  return policy.for_module(module, layer);
}

void check_recipes(const PrecisionPolicy& policy, const std::vector<std::string>& modules, Capability on, bool emulate) {
  for (const std::string& module : modules) {
    const Recipe& r = recipe_of(policy, module);
    check_recipe(r, on, emulate, &r == &policy.base() ? "precision.recipe" : fmt::format("precision.rules (module {})", module));
  }
}

bool compiled_for(std::string_view architectures, Capability on) {
  while (!architectures.empty()) {
    const std::string_view one = architectures.substr(0, architectures.find_first_of(";,"));
    architectures.remove_prefix(std::min(one.size() + 1, architectures.size()));
    int number = 0;
    const auto [end, error] = std::from_chars(one.data(), one.data() + one.size(), number);
    if (error != std::errc()) return true;   // "native", "all": decided where it was compiled
    std::string_view rest = one.substr(static_cast<size_t>(end - one.data()));
    const Capability arch{number / 10, number % 10};
    const char letter = rest.empty() || rest[0] == '-' ? '\0' : rest[0];
    if (letter) rest.remove_prefix(1);
    const bool family = on.major == arch.major && on.minor >= arch.minor;
    if (rest != "-virtual" && (letter == 'a' ? on == arch : family)) return true;
    if (rest != "-real" && (letter == 'a' ? on == arch : letter == 'f' ? family : on >= arch)) return true;
  }
  return false;
}

}  // namespace octet
