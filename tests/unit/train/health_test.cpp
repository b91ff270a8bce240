// FP8 health statistics of the quantize kernel against NumPy (tests/golden/make_health_reference.py), and their independence of threads.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "checkpoint/safetensors.h"
#include "core/philox.h"
#include "ops/quantize.h"
#include "source_dir.h"
#include "train/health_lines.h"

namespace octet {
namespace {

using nlohmann::json;

QuantSpec spec_of(const json& c) {
  QuantSpec s;
  for (Dtype d : {Dtype::e4m3, Dtype::e5m2, Dtype::e3m2, Dtype::e2m3, Dtype::e2m1}) {
    if (c.at("format") == name(d)) s.format = d;
  }
  s.block_rows = c.at("block")[0];
  s.block_cols = c.at("block")[1];
  const std::string scale = c.at("scale");
  s.scale = scale == "pow2" ? ScaleKind::pow2 : scale == "e8m0" ? ScaleKind::e8m0 : scale == "ue4m3" ? ScaleKind::ue4m3 : ScaleKind::fp32;
  s.scaling = c.at("stored_scale").is_null() ? Scaling::current : Scaling::delayed;
  s.fp64_divide = c.at("fp64_divide");
  s.amax_epsilon = c.at("amax_epsilon");
  s.hadamard = c.at("hadamard");
  return s;
}

ImageHealth measure(std::vector<float>& x, const Shape& shape, const QuantSpec& spec, bool column, const float* stored, int threads) {
  ThreadPool pool(threads);
  ImageHealth health;
  const auto quantize = [&](Arena& scratch, Arena& images) {
    Ctx ctx(pool, scratch, GemmMath::fixed);
    QuantizedOut out;
    (column ? out.col_spec : out.row_spec) = spec;
    (column ? out.col : out.row) = alloc_image(images, spec, shape[0], shape[1], column);
    out.target.stored_scale = stored;
    (column ? out.target.col_health : out.target.row_health) = &health;
    ops::quantize(ctx, Tensor{x.data(), Dtype::f32, shape}, out);
  };
  Arena counted_scratch, counted_images;
  quantize(counted_scratch, counted_images);
  Arena scratch(counted_scratch.high_water_bytes(), true), images(counted_images.high_water_bytes());
  quantize(scratch, images);
  return health;
}

void expect_figure(const json& want, const json& got, double tolerance, const std::string& where) {
  ASSERT_EQ(want.is_null(), got.is_null()) << where << ": " << want << " " << got;
  if (want.is_null()) return;
  EXPECT_NEAR(got.get<double>(), want.get<double>(), tolerance * std::fabs(want.get<double>())) << where;
}

TEST(health, equals_numpy_on_random_heavy_tailed_and_adversarial_tensors) {
  const SafetensorsFile file = SafetensorsFile::open(test::source_dir() + "/tests/golden/health_reference.safetensors");
  const json cases = json::parse(file.metadata().at("expected"));
  ASSERT_EQ(cases.size(), 84u);
  for (const json& c : cases) {
    const std::string where = c.at("tensor").get<std::string>() + ", " + c.at("case").get<std::string>();
    const TensorInfo* info = file.find(c.at("tensor").get<std::string>());
    ASSERT_NE(info, nullptr);
    std::vector<float> x(static_cast<size_t>(info->shape.elements()));
    file.read(info->name, Dtype::f32, info->shape, x.data());
    const float stored = c.at("stored_scale").is_null() ? 0.0f : c.at("stored_scale").get<float>();
    const ImageHealth h = measure(x, info->shape, spec_of(c), c.at("column"), stored > 0 ? &stored : nullptr, 1);
    const ImageHealth four = measure(x, info->shape, spec_of(c), c.at("column"), stored > 0 ? &stored : nullptr, 4);
    EXPECT_EQ(std::memcmp(&h, &four, sizeof h), 0) << where << ": depends on the number of threads";

    const json want = c.at("figures");
    const json got = health_values({{"m/x", Role::x, "row", spec_of(c).format, h}});
    EXPECT_EQ(got.at("elements")[0], want.at("elements")) << where;
    EXPECT_EQ(got.at("nonfinite")[0], want.at("nonfinite")) << where;
    EXPECT_EQ(h.underflow_share(), want.at("underflow").get<double>()) << where;      // counts are exact
    EXPECT_EQ(h.saturated_share(), want.at("saturation").get<double>()) << where;
    for (const char* key : {"amax", "scale_min", "scale_max", "underflow", "saturation", "sqnr_db", "cosine"}) {
      expect_figure(want.at(key), got.at(key)[0], 1e-5, where + ", " + key);          // six digits
    }
    if (const auto db = h.sqnr_db()) {
      EXPECT_NEAR(*db, want.at("sqnr_db").get<double>(), 1e-9 * std::fabs(*db) + 1e-9) << where;
    }
  }
}

// Published table (FP8 on synthetic data): N(0,1) in E4M3 with one scale is 31.5 dB.
TEST(health, normal_data_has_the_known_error) {
  const Philox rng(1, RngPurpose::init, "normal");
  std::vector<float> x(256 * 1024);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(rng.normal(i));
  QuantSpec spec;
  spec.format = Dtype::e4m3;
  const ImageHealth h = measure(x, {256, 1024}, spec, false, nullptr, 2);
  EXPECT_NEAR(h.sqnr_db().value(), 31.54, 0.1);
  EXPECT_NEAR(h.underflow_share(), 1.4e-5, 1.4e-5);
  EXPECT_EQ(h.saturated, 0);
}

TEST(health, lines_have_one_entry_an_image) {
  QuantRegistry q;
  q.set_health({1, {"*"}});
  const Recipe r = make_recipe("blockwise", {});
  q.add("layers.1.mlp.down/x", Role::x, r.x_row, r.x_col);
  q.add("layers.1.mlp.down/down_proj/w", Role::w, r.w_row, r.w_col);
  q.begin_step(0);
  const json sites = health_sites(q.health());
  ASSERT_EQ(sites.size(), 3u);
  EXPECT_EQ(sites[1], json({{"name", "layers.1.mlp.down/x.col"}, {"module", "layers.1.mlp.down"}, {"tensor", "x"}, {"role", "x"}, {"image", "col"}, {"format", "e4m3"}}));
  EXPECT_EQ(sites[2].at("image"), "both");
  EXPECT_EQ(sites[2].at("tensor"), "down_proj/w");
  const json values = health_values(q.health());
  for (const auto& [key, list] : values.items()) EXPECT_EQ(list.size(), 3u) << key;
  for (const char* undefined : {"scale_min", "scale_max", "sqnr_db", "cosine"}) EXPECT_TRUE(values.at(undefined)[0].is_null()) << undefined;
}

}  // namespace
}  // namespace octet
