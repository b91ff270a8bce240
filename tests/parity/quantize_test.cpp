// Images of every recipe: the same codes, scales, amaxes and counts from both backends; statistics within rounding of their sums.
#include "cpu/cpu_ops.h"
#include "cuda/cuda_ops.h"
#include "recipe/recipe.h"
#include "rig.h"

using namespace parity;

namespace {

struct Spec {
  std::string name;
  QuantSpec row, col;
};

// Every distinct pair of images that the recipes ask for, and block shapes that no recipe has.
std::vector<Spec> specs() {
  std::vector<Spec> out;
  const auto add = [&](const std::string& name, const QuantSpec& row, const QuantSpec& col) {
    if (!row.quantized() && !col.quantized()) return;
    for (const Spec& s : out) {
      if (s.row == row && s.col == col) return;
    }
    out.push_back({name, row, col});
  };
  for (const std::string& name : recipe_names()) {
    if (name == "custom" || name == "static") continue;
    for (const char* format : {"hybrid", "e4m3"}) {
      PrecisionConfig p;
      p.recipe = name;
      p.format = format;
      p.emulate = true;
      Recipe r;
      try {
        r = make_recipe(name, p);
      } catch (const Error&) {
        continue;   // a format that this recipe has not
      }
      add(name + " x", r.x_row, r.x_col);
      add(name + " w", r.w_row, r.w_col);
      add(name + " dy", r.dy_row, r.dy_col);
    }
  }
  add("1x64", block_spec(Dtype::e4m3, 1, 64, ScaleKind::fp32), block_spec(Dtype::e5m2, 1, 64, ScaleKind::pow2));
  add("48x80", block_spec(Dtype::e5m2, 48, 80, ScaleKind::pow2), block_spec(Dtype::e4m3, 7, 3, ScaleKind::fp32));
  add("1x128 e5m2", block_spec(Dtype::e5m2, 1, 128, ScaleKind::fp32), block_spec(Dtype::e5m2, 1, 128, ScaleKind::fp32));
  add("e8m0 128", block_spec(Dtype::e4m3, 1, 128, ScaleKind::e8m0), block_spec(Dtype::e4m3, 1, 128, ScaleKind::e8m0));
  add("tensor and rows", block_spec(Dtype::e4m3, 0, 0, ScaleKind::fp32), block_spec(Dtype::e4m3, 1, 0, ScaleKind::fp32));
  QuantSpec stochastic = block_spec(Dtype::e4m3, 1, 128, ScaleKind::fp32);
  stochastic.rounding = Rounding::stochastic;
  add("stochastic", stochastic, stochastic);
  return out;
}

// Values whose magnitudes differ by blocks, with zeros, subnormals and ties; optionally elements that are not finite.
Host matrix(const std::string& name, Dtype dtype, int64_t rows, int64_t cols, bool nonfinite) {
  Host x = normal(name, dtype, {rows, cols});
  for (int64_t i = 0; i < x.elements(); ++i) {
    const int64_t r = i / cols, c = i % cols;
    x.set(i, x.at(i) * std::ldexp(1.0, static_cast<int>((r / 40 + c / 50) % 7 * 5 - 18)));
    if (i % 29 == 0) x.set(i, 0.0);
    if (i % 31 == 0) x.set(i, i % 62 ? -1e-40 : 1e-40);
    if (i % 37 == 0) x.set(i, 0.0625 * static_cast<double>(i % 64));
    if (r / 128 == 1 && c / 128 == 0) x.set(i, 0.0);   // a block of zeros
  }
  if (nonfinite) {
    x.set(x.elements() / 3, std::numeric_limits<double>::infinity());
    x.set(x.elements() / 2, std::numeric_limits<double>::quiet_NaN());
    x.set(x.elements() - 1, -std::numeric_limits<double>::infinity());
  }
  return x;
}

struct Results {
  PlainImage row, col;
  float amax = 0;
  int64_t nonfinite = 0;
  ImageHealth row_health, col_health;
};

struct Case {
  Spec spec;
  bool row, col, health;
  float stored = 3.5f;
};

QuantTarget target_of(const Case& c, const float* stored, float* amax, int64_t* nonfinite, ImageHealth* row, ImageHealth* col) {
  QuantTarget t;
  t.stored_scale = c.spec.row.stored_scale() || c.spec.col.stored_scale() ? stored : nullptr;
  t.amax = amax;
  t.nonfinite = nonfinite;
  t.site_hash = 0x123456789ABCDEFull;
  t.row_health = c.health ? row : nullptr;
  t.col_health = c.health ? col : nullptr;
  return t;
}

// What the producer of the matrix is; both backends get it through the same operator.
using Producer = std::function<void(Ctx&, bool on_device, const QuantizedOut&)>;

Results run_host(Rig& rig, const Case& c, int64_t rows, int64_t cols, const Producer& produce) {
  Results r;
  Arena memory(size_t{8} << 20);
  QuantizedOut out{c.spec.row, c.spec.col, {}, {}, target_of(c, &c.stored, &r.amax, &r.nonfinite, &r.row_health, &r.col_health)};
  if (c.row) out.row = alloc_image(memory, c.spec.row, rows, cols, false);
  if (c.col) out.col = alloc_image(memory, c.spec.col, rows, cols, true);
  rig.on_host([&](Ctx& ctx) { produce(ctx, false, out); }, 11, {5, 77});
  if (c.row) r.row = plain_image(out.row, false);
  if (c.col) r.col = plain_image(out.col, true);
  return r;
}

Results run_device(Rig& rig, const Case& c, int64_t rows, int64_t cols, const Producer& produce) {
  Results r;
  float* stored = rig.upload_value(c.stored);
  float* amax = rig.upload_value(0.0f);
  int64_t* nonfinite = rig.upload_value(int64_t{0});
  ImageHealth *row = rig.upload_value(ImageHealth{}), *col = rig.upload_value(ImageHealth{});
  QuantizedOut out{c.spec.row, c.spec.col, {}, {}, target_of(c, stored, amax, nonfinite, row, col)};
  if (c.row) out.row = rig.upload_image(c.spec.row, rows, cols, false);
  if (c.col) out.col = rig.upload_image(c.spec.col, rows, cols, true);
  rig.on_device([&](Ctx& ctx) { produce(ctx, true, out); }, 11, {5, 77});
  if (c.row) r.row = rig.download_image(out.row, false);
  if (c.col) r.col = rig.download_image(out.col, true);
  r.amax = rig.download_value(amax);
  r.nonfinite = rig.download_value(nonfinite);
  r.row_health = rig.download_value(row);
  r.col_health = rig.download_value(col);
  return r;
}

void expect_same_health(const ImageHealth& got, const ImageHealth& want, const std::string& what) {
  EXPECT_EQ(got.elements, want.elements) << what;
  EXPECT_EQ(got.nonfinite, want.nonfinite) << what;
  EXPECT_EQ(got.underflow, want.underflow) << what;
  EXPECT_EQ(got.saturated, want.saturated) << what;
  EXPECT_EQ(got.amax, want.amax) << what;
  EXPECT_EQ(got.scale_min, want.scale_min) << what;
  EXPECT_EQ(got.scale_max, want.scale_max) << what;
  const auto near = [&](double a, double b) { EXPECT_NEAR(a, b, 1e-12 * std::fabs(b)) << what; };
  near(got.sum_xx, want.sum_xx);
  near(got.sum_qq, want.sum_qq);
  near(got.sum_xq, want.sum_xq);
  near(got.sum_ee, want.sum_ee);
}

void compare(Rig& rig, const Case& c, int64_t rows, int64_t cols, const Producer& produce, const std::string& what) {
  const Results want = run_host(rig, c, rows, cols, produce), got = run_device(rig, c, rows, cols, produce), again = run_device(rig, c, rows, cols, produce);
  const std::string name = what + " " + c.spec.name + (c.health ? " with statistics" : "");
  if (c.row) expect_same(got.row, want.row, name + " row image");
  if (c.col) expect_same(got.col, want.col, name + " column image");
  EXPECT_EQ(got.row.codes, again.row.codes) << name;
  EXPECT_EQ(got.col.codes, again.col.codes) << name;
  EXPECT_EQ(got.row.scale_inv, again.row.scale_inv) << name;
  EXPECT_EQ(got.col.scale_inv, again.col.scale_inv) << name;
  EXPECT_EQ(got.amax, again.amax) << name;
  EXPECT_EQ(got.nonfinite, again.nonfinite) << name;
  EXPECT_EQ(got.row_health.sum_ee, again.row_health.sum_ee) << name;
  EXPECT_EQ(got.col_health.sum_ee, again.col_health.sum_ee) << name;
  EXPECT_EQ(got.amax, want.amax) << name;
  EXPECT_EQ(got.nonfinite, want.nonfinite) << name;
  if (c.health && c.row) expect_same_health(got.row_health, want.row_health, name + " row");
  if (c.health && c.col) expect_same_health(got.col_health, want.col_health, name + " column");
  rig.reset();
}

struct Size {
  int64_t rows, cols;
};
// Whole tiles, ragged ones that the tile family takes (multiples of 16), ones that only the general family takes, and very small ones.
constexpr Size sizes[] = {{144, 208}, {130, 77}, {32, 48}, {1, 1}, {3, 130}};

TEST(quantize, plain_matrices_of_every_recipe) {
  Rig rig;
  for (const Spec& spec : specs()) {
    for (const Size& extent : sizes) {
      const int64_t rows = extent.rows, cols = extent.cols;   // Clang 14 captures no structured bindings
      for (const Dtype dtype : {Dtype::bf16, Dtype::f32}) {
        if (dtype == Dtype::f32 && rows != 130) continue;
        const std::string size = std::string(name(dtype)) + " " + std::to_string(rows) + "x" + std::to_string(cols);
        Host x = matrix(size, dtype, rows, cols, rows >= 32);
        const Producer produce = [&](Ctx& ctx, bool device, const QuantizedOut& out) {
          if (device) {
            cuda::quantize(ctx, ctx.planning() ? MatrixView(Tensor{nullptr, dtype, {rows, cols}}) : MatrixView(rig.upload(x)), out);
          } else {
            cpu::quantize(ctx, x.tensor(), out);
          }
        };
        const bool r = spec.row.quantized(), k = spec.col.quantized();
        compare(rig, {spec, r, k, false}, rows, cols, produce, size);
        if (rows == 130 && dtype == Dtype::bf16) compare(rig, {spec, r, k, true}, rows, cols, produce, size);
        if ((rows == 32 || (rows == 130 && dtype == Dtype::bf16)) && r && k) {
          compare(rig, {spec, true, false, false}, rows, cols, produce, size + " row only");
          compare(rig, {spec, false, true, false}, rows, cols, produce, size + " column only");
        }
      }
    }
  }
}

// q inside qkv: rows lie further apart than they are long.
TEST(quantize, columns_of_a_wider_matrix) {
  Rig rig;
  for (const Spec& spec : specs()) {
    Host x = matrix("wide", Dtype::bf16, 160, 512, false);
    const Producer produce = [&](Ctx& ctx, bool device, const QuantizedOut& out) {
      const Tensor whole = device ? (ctx.planning() ? Tensor{nullptr, Dtype::bf16, {160, 512}} : rig.upload(x)) : x.tensor();
      const MatrixView part = MatrixView(whole).columns(128, 192);
      device ? cuda::quantize(ctx, part, out) : cpu::quantize(ctx, part, out);
    };
    compare(rig, {spec, spec.row.quantized(), spec.col.quantized(), false}, 160, 192, produce, "columns");
  }
}

}  // namespace
