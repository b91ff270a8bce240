#include "images.h"

namespace parity {
namespace {

struct Results {
  PlainImage row, col;
  float amax = 0;
  int64_t nonfinite = 0;
  ImageHealth row_health, col_health;
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

bool gives(const Case& c, int64_t rows, int64_t cols, bool column) {
  return c.given && (column ? c.col : c.row) && shared_amax_count(column ? c.spec.col : c.spec.row, rows, cols, column) > 0;
}

std::vector<Results> run_host(Rig& rig, const Case& c, int64_t rows, int64_t cols, const Producer& produce, int parts) {
  std::vector<Results> results(static_cast<size_t>(parts));
  Arena memory(size_t{8} << 20);
  std::vector<QuantizedOut> out;
  Host row_amax = given_amaxes(c.spec.row, rows, cols, false), col_amax = given_amaxes(c.spec.col, rows, cols, true);
  for (Results& r : results) {
    out.push_back({c.spec.row, c.spec.col, {}, {}, target_of(c, &c.stored, &r.amax, &r.nonfinite, &r.row_health, &r.col_health)});
    if (c.row) out.back().row = alloc_image(memory, c.spec.row, rows, cols, false);
    if (c.col) out.back().col = alloc_image(memory, c.spec.col, rows, cols, true);
    if (gives(c, rows, cols, false)) out.back().row_amax = row_amax.tensor();
    if (gives(c, rows, cols, true)) out.back().col_amax = col_amax.tensor();
  }
  rig.on_host([&](Ctx& ctx) { produce(ctx, false, out); }, 11, {5, 77});
  for (size_t i = 0; i < out.size(); ++i) {
    if (c.row) results[i].row = plain_image(out[i].row, false);
    if (c.col) results[i].col = plain_image(out[i].col, true);
  }
  return results;
}

std::vector<Results> run_device(Rig& rig, const Case& c, int64_t rows, int64_t cols, const Producer& produce, int parts) {
  float* stored = rig.upload_value(c.stored);
  struct Place {
    float* amax;
    int64_t* nonfinite;
    ImageHealth *row, *col;
  };
  std::vector<Place> places;
  std::vector<QuantizedOut> out;
  for (int i = 0; i < parts; ++i) {
    const Place p = places.emplace_back(Place{rig.upload_value(0.0f), rig.upload_value(int64_t{0}), rig.upload_value(ImageHealth{}), rig.upload_value(ImageHealth{})});
    out.push_back({c.spec.row, c.spec.col, {}, {}, target_of(c, stored, p.amax, p.nonfinite, p.row, p.col)});
    if (c.row) out.back().row = rig.upload_image(c.spec.row, rows, cols, false);
    if (c.col) out.back().col = rig.upload_image(c.spec.col, rows, cols, true);
    if (gives(c, rows, cols, false)) out.back().row_amax = rig.upload(given_amaxes(c.spec.row, rows, cols, false));
    if (gives(c, rows, cols, true)) out.back().col_amax = rig.upload(given_amaxes(c.spec.col, rows, cols, true));
  }
  rig.on_device([&](Ctx& ctx) { produce(ctx, true, out); }, 11, {5, 77});
  std::vector<Results> results;
  for (size_t i = 0; i < out.size(); ++i) {
    Results& r = results.emplace_back();
    if (c.row) r.row = rig.download_image(out[i].row, false);
    if (c.col) r.col = rig.download_image(out[i].col, true);
    r.amax = rig.download_value(places[i].amax);
    r.nonfinite = rig.download_value(places[i].nonfinite);
    r.row_health = rig.download_value(places[i].row);
    r.col_health = rig.download_value(places[i].col);
  }
  return results;
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

void compare_part(const Case& c, const Results& want, const Results& got, const Results& again, const std::string& name) {
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
  EXPECT_EQ(got.amax, want.amax) << name;   // of the matrix, also where others were given
  EXPECT_EQ(got.nonfinite, want.nonfinite) << name;
  if (c.health && c.row) expect_same_health(got.row_health, want.row_health, name + " row");
  if (c.health && c.col) expect_same_health(got.col_health, want.col_health, name + " column");
}

}  // namespace

bool can_give(const Case& c, int64_t rows, int64_t cols) {
  Case with = c;
  with.given = true;
  return gives(with, rows, cols, false) || gives(with, rows, cols, true);
}

Host given_amaxes(const QuantSpec& spec, int64_t rows, int64_t cols, bool column) {
  Host amax(Dtype::f32, {shared_amax_count(spec, rows, cols, column)});
  for (int64_t i = 0; i < amax.elements(); ++i) amax.set(i, i % 11 == 5 ? 0.0 : i % 13 == 7 ? std::numeric_limits<double>::infinity() : 0.3 + static_cast<double>(i % 7));
  return amax;
}

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
  add("1x128 and rows", block_spec(Dtype::e4m3, 1, 128, ScaleKind::pow2), block_spec(Dtype::e4m3, 1, 0, ScaleKind::pow2));   // configs/recipes/blockwise_with_gw_rowwise.json
  add("tensor and rows", block_spec(Dtype::e4m3, 0, 0, ScaleKind::fp32), block_spec(Dtype::e4m3, 1, 0, ScaleKind::fp32));
  QuantSpec stochastic = block_spec(Dtype::e4m3, 1, 128, ScaleKind::fp32);
  stochastic.rounding = Rounding::stochastic;
  add("stochastic", stochastic, stochastic);
  add("tensor ue4m3", block_spec(Dtype::e2m1, 0, 0, ScaleKind::ue4m3), block_spec(Dtype::e4m3, 32, 0, ScaleKind::fp32));
  return out;
}

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

void compare(Rig& rig, const Case& c, int64_t rows, int64_t cols, const Producer& produce, const std::string& what, int parts) {
  const auto want = run_host(rig, c, rows, cols, produce, parts), got = run_device(rig, c, rows, cols, produce, parts), again = run_device(rig, c, rows, cols, produce, parts);
  for (size_t i = 0; i < want.size(); ++i) {
    compare_part(c, want[i], got[i], again[i], fmt::format("{} {}{}{}{}", what, c.spec.name, c.health ? " with statistics" : "", c.given ? " with given amaxes" : "", parts > 1 ? fmt::format(", part {}", i) : ""));
  }
  rig.reset();
}

}  // namespace parity
