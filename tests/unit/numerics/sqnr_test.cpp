// Signal-to-noise ratio and underflow of quantized data against published figures (2^20 samples; the generator below draws the
// same samples as the published ones where the C++ library's normal_distribution is libstdc++'s).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "cpu/convert.h"
#include "numerics/scale.h"

using namespace octet;

namespace {

struct Quality {
  double sqnr_db, underflow_percent;
};

Quality quality_of(const std::vector<float>& x, Dtype f, int64_t block, bool pow2) {
  const auto n = static_cast<int64_t>(x.size());
  if (block == 0) block = n;
  double signal = 0, noise = 0;
  int64_t underflows = 0;
  std::vector<uint8_t> q(static_cast<size_t>(block));
  std::vector<float> y(q.size());
  for (int64_t begin = 0; begin < n; begin += block) {
    const float* data = x.data() + begin;
    const float scale = scale_from_amax(cpu::amax_array(data, block).amax, format_info(f).max_finite, pow2, 0.0f, 0x1.fffffep127f, false);
    cpu::encode_array(f, data, scale, q.data(), block);
    cpu::decode_array(f, q.data(), inverse_scale(scale), y.data(), block);
    for (int64_t i = 0; i < block; ++i) {
      const double v = static_cast<double>(data[i]), e = static_cast<double>(y[static_cast<size_t>(i)]) - v;
      signal += v * v, noise += e * e;
      underflows += data[i] != 0.0f && (q[static_cast<size_t>(i)] & 0x7F) == 0;
    }
  }
  return {10 * std::log10(signal / noise), 100.0 * static_cast<double>(underflows) / static_cast<double>(n)};
}

struct Row {
  Dtype f;
  int64_t block;
  bool pow2;
  double sqnr_db, underflow_percent, underflow_digit;  // digit: weight of the last published digit of the underflow
};

TEST(sqnr, published_table) {
  // First table: N(0,1), published to 0.01 dB. Second: N(0,1) * exp(2 N(0,1)), published to 0.1 dB.
  const std::vector<std::vector<Row>> tables = {
      {{Dtype::e4m3, 0, false, 31.54, 0.0014, 1e-4}, {Dtype::e4m3, 128, false, 31.78, 0.0008, 1e-4}, {Dtype::e4m3, 128, true, 31.51, 0.0012, 1e-4},
       {Dtype::e4m3, 32, true, 31.51, 0.0011, 1e-4}, {Dtype::e5m2, 0, false, 25.56, 0, 1e-4}, {Dtype::e5m2, 128, false, 25.80, 0, 1e-4},
       {Dtype::e5m2, 128, true, 25.56, 0, 1e-4}, {Dtype::e5m2, 32, true, 25.56, 0, 1e-4}},
      {{Dtype::e4m3, 0, false, 31.7, 13.7, 0.1}, {Dtype::e4m3, 128, false, 43.1, 0.30, 0.01}, {Dtype::e4m3, 128, true, 31.1, 0.42, 0.01},
       {Dtype::e4m3, 32, true, 31.1, 0.17, 0.01}, {Dtype::e5m2, 0, false, 26.1, 0.002, 1e-3}, {Dtype::e5m2, 128, false, 36.9, 0, 1e-3},
       {Dtype::e5m2, 128, true, 27.0, 0, 1e-3}, {Dtype::e5m2, 32, true, 27.0, 0, 1e-3}}};
  std::mt19937 rng(1);
  std::normal_distribution<float> normal;
  for (size_t mode = 0; mode < tables.size(); ++mode) {
    std::vector<float> x(1 << 20);
    for (float& v : x) {
      v = normal(rng);
      if (mode == 1) v *= std::exp(2.0f * normal(rng));
    }
    for (const Row& r : tables[mode]) {
      const Quality got = quality_of(x, r.f, r.block, r.pow2);
      const std::string row = fmt::format("{} block {} pow2 {} table {}", name(r.f), r.block, r.pow2, mode);
      EXPECT_NEAR(got.sqnr_db, r.sqnr_db, 0.0501) << row;
      EXPECT_NEAR(got.underflow_percent, r.underflow_percent, 0.51 * r.underflow_digit) << row;
    }
  }
}

}  // namespace
