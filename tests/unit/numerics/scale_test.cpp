// Scale formulas: published values, edges, and the identities the recipes rely on.
#include "numerics/scale.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "oracle.h"

using namespace octet;

namespace {

constexpr float flt_max = std::numeric_limits<float>::max();
using oracle::inf, oracle::nan;
const float bf16_max = oracle::float_of(0x7F7F0000u);

float tensorwise(float amax, float max = 448.0f) { return scale_from_amax(amax, max, false, 0.0f, flt_max, false); }
float blockwise(float amax, float max = 448.0f) { return scale_from_amax(amax, max, true, 0.0f, bf16_max, false); }
float rowwise(float amax, float max = 448.0f) { return scale_from_amax(amax, max, true, 1e-12f, flt_max, true); }

// Rounding down as OCP Microscaling 1.0 has it: 2^(floor(log2 amax) - emax). Here to show why it is not used.
int floor_code(float amax, Dtype f) { return std::clamp(std::ilogb(amax) - format_info(f).emax + 127, 0, 254); }

TEST(scale, tensorwise_reference_values) {
  EXPECT_EQ(tensorwise(448.0f), 1.0f);
  EXPECT_EQ(oracle::bits(tensorwise(3.0f)), 0x43155555u);
  EXPECT_EQ(tensorwise(1e-40f), flt_max);
  for (float amax : {0.0f, inf, nan, -inf, -1.0f}) EXPECT_EQ(tensorwise(amax), 1.0f) << amax;
  EXPECT_EQ(tensorwise(57344.0f, 57344.0f), 1.0f);
  EXPECT_EQ(scale_from_amax(0.25f, 448.0f, false, 0.5f, flt_max, false), 896.0f);  // epsilon is a lower bound of amax
  EXPECT_EQ(scale_from_amax(nan, 448.0f, false, 0.5f, flt_max, false), 1.0f);
}

TEST(scale, table_of_all_formulas) {
  struct Row {
    float amax, fp32, pow2;
    int rceil, floor;
  };
  const Row rows[] = {{1.0f, 448.0f, 256.0f, 0x77, 0x77}, {3.0f, 149.33333f, 128.0f, 0x78, 0x78}, {7.0f, 64.0f, 64.0f, 0x79, 0x79},
      {447.0f, 1.0022371f, 1.0f, 0x7F, 0x7F}, {448.0f, 1.0f, 1.0f, 0x7F, 0x7F}, {449.0f, 0.99777281f, 0.5f, 0x80, 0x7F},
      {896.0f, 0.5f, 0.5f, 0x80, 0x80}, {1e-4f, 4480000.0f, 4194304.0f, 0x69, 0x69}, {3e38f, 1.4933333e-36f, 0x1p-120f, 0xF7, 0xF6},
      {1e-40f, flt_max, 0x1p127f, 0x00, 0x00}};
  for (const auto& r : rows) {
    EXPECT_EQ(tensorwise(r.amax), r.fp32) << r.amax;
    EXPECT_EQ(scale_from_amax(r.amax, 448.0f, true, 0.0f, flt_max, false), r.pow2) << r.amax;
    EXPECT_EQ(mx_scale_code(r.amax, Dtype::e4m3), r.rceil) << r.amax;
    EXPECT_EQ(floor_code(r.amax, Dtype::e4m3), r.floor) << r.amax;
  }
}

TEST(scale, blockwise_overflow_is_the_largest_bf16) {
  EXPECT_EQ(oracle::bits(scale_from_amax(1e-40f, 448.0f, false, 0.0f, bf16_max, false)), 0x7F7F0000u);
  EXPECT_EQ(blockwise(1e-40f), 0x1p127f);
  EXPECT_EQ(inverse_scale(blockwise(1e-40f)), 0x1p-127f);
  for (float amax : {0.0f, inf, nan}) EXPECT_EQ(blockwise(amax), 1.0f);
}

TEST(scale, rowwise_zero_rows_and_fp64_division) {
  // A zero row gets the scale of the epsilon, finite and with a finite inverse.
  const float zero_row = rowwise(0.0f);
  EXPECT_EQ(zero_row, std::exp2(std::floor(std::log2(448.0f / 1e-12f))));
  EXPECT_TRUE(std::isfinite(inverse_scale(zero_row)));
  EXPECT_EQ(rowwise(1e-40f), zero_row);
  EXPECT_EQ(rowwise(3.0f), 128.0f);
  std::mt19937 rng(2);
  for (int i = 0; i < 100000; ++i) {
    const float amax = oracle::float_of(0x20000000u + static_cast<uint32_t>(rng()) % 0x50000000u);
    EXPECT_EQ(scale_from_amax(amax, 448.0f, false, 1e-12f, flt_max, true), static_cast<float>(448.0 / static_cast<double>(std::max(amax, 1e-12f))));
  }
  EXPECT_EQ(scale_from_amax(1e-40f, 448.0f, false, 0.0f, flt_max, true), flt_max);  // quotient beyond FP32
}

// With power-of-two scales nothing saturates and at most one binade is given away.
TEST(scale, pow2_scale_uses_the_top_binade) {
  std::mt19937 rng(4);
  for (float max : {448.0f, 57344.0f, 28.0f, 7.5f, 6.0f}) {
    for (int i = 0; i < 20000; ++i) {
      const float amax = oracle::float_of(0x0A000000u + static_cast<uint32_t>(rng()) % 0x74000000u);
      const float scale = scale_from_amax(amax, max, true, 0.0f, flt_max, false);
      const double scaled = static_cast<double>(amax) * static_cast<double>(scale);
      EXPECT_LE(scaled, static_cast<double>(max)) << amax;
      EXPECT_GT(scaled, static_cast<double>(max) / 2) << amax;
      EXPECT_EQ(scale * inverse_scale(scale), 1.0f);
    }
  }
}

TEST(scale, floor_to_pow2) {
  EXPECT_EQ(floor_to_pow2(1.0f), 1.0f);
  EXPECT_EQ(floor_to_pow2(1.99f), 1.0f);
  EXPECT_EQ(floor_to_pow2(flt_max), 0x1p127f);
  EXPECT_EQ(floor_to_pow2(0x1.8p-130f), 0x1p-130f);
  EXPECT_EQ(floor_to_pow2(0x1p-149f), 0x1p-149f);
}

// s = 2^floor(log2(448 / amax)) and the MX code 2^ceil(log2(amax / 448)) are inverse to each other for every mantissa, and TE's
// multiplication by fl(1/max) gives the code of the true division.
TEST(scale, pow2_equals_round_up_for_every_mantissa) {
  long mismatches = 0;
  for (Dtype f : {Dtype::e4m3, Dtype::e5m2}) {
    const float max = format_info(f).max_finite;
    for (uint32_t m = 0; m < 0x800000u; ++m) {
      const float amax = oracle::float_of(0x3F800000u | m);
      const uint8_t code = mx_scale_code(amax, f);
      mismatches += scale_from_amax(amax, max, true, 0.0f, flt_max, false) != e8m0_reciprocal(code);
      mismatches += code != e8m0_encode_rp(amax / max);
    }
  }
  EXPECT_EQ(mismatches, 0);
}

TEST(scale, mx_multiplication_agrees_with_division_in_all_exponents) {
  std::mt19937 rng(9);
  long mismatches = 0;
  for (Dtype f : {Dtype::e4m3, Dtype::e5m2}) {
    const float max = format_info(f).max_finite;
    for (uint32_t e = 0; e < 255; ++e) {
      for (int i = 0; i < 4000; ++i) {
        const float amax = oracle::float_of(e << 23 | (static_cast<uint32_t>(rng()) & 0x7FFFFFu));
        mismatches += mx_scale_code(amax, f) != e8m0_encode_rp(amax / max);
      }
    }
  }
  EXPECT_EQ(mismatches, 0);
  for (int k = -120; k <= 110; ++k) EXPECT_EQ(mx_scale_code(std::ldexp(448.0f, k), Dtype::e4m3), k + 127) << k;
}

TEST(scale, mx_edges) {
  for (Dtype f : {Dtype::e4m3, Dtype::e5m2}) {
    EXPECT_EQ(mx_scale_code(0.0f, f), 0x00);
    EXPECT_EQ(mx_scale_code(inf, f), 0xFE);
    EXPECT_EQ(mx_scale_code(nan, f), 0xFF);
    EXPECT_EQ(mx_scale_code(0x1p-149f, f), 0x00);
  }
  EXPECT_EQ(mx_scale_code(flt_max, Dtype::e4m3), 0xF7);
  EXPECT_EQ(e8m0_reciprocal(mx_scale_code(1e-40f, Dtype::e4m3)), 0x1p127f);
}

// Why the exponent is rounded up: rounding down clips the block's largest element whenever its mantissa exceeds 1.75.
TEST(scale, mx_floor_saturates_and_round_up_does_not) {
  int clipped_floor = 0, clipped_up = 0;
  constexpr int n = 4096;
  for (int i = 0; i < n; ++i) {
    const float amax = 1.0f + static_cast<float>(i) / n;
    clipped_floor += amax * e8m0_reciprocal(static_cast<uint8_t>(floor_code(amax, Dtype::e4m3))) > 448.0f;
    clipped_up += amax * e8m0_reciprocal(mx_scale_code(amax, Dtype::e4m3)) > 448.0f;
  }
  EXPECT_EQ(clipped_up, 0);
  EXPECT_EQ(clipped_floor, n / 4 - 1);
}

TEST(scale, delayed) {
  EXPECT_EQ(delayed_scale(448.0f, 448.0f, 0, 7.0f), 1.0f);
  EXPECT_EQ(oracle::bits(delayed_scale(3.0f, 448.0f, 0, 7.0f)), 0x43155555u);
  EXPECT_EQ(delayed_scale(448.0f, 448.0f, 1, 7.0f), 0.5f);
  EXPECT_EQ(delayed_scale(448.0f, 448.0f, -1, 7.0f), 2.0f);
  for (float amax : {0.0f, inf, nan, -1.0f}) EXPECT_EQ(delayed_scale(amax, 448.0f, 0, 7.0f), 7.0f) << amax;
  EXPECT_EQ(delayed_scale(1e-40f, 448.0f, 0, 7.0f), flt_max);
  EXPECT_EQ(delayed_scale(3.0f, 448.0f, 0, 7.0f, true), 128.0f);
  EXPECT_EQ(delayed_scale(1e-40f, 448.0f, 0, 7.0f, true), 0x1p127f);
  EXPECT_EQ(delayed_scale(1.0f, 448.0f, 1000000, 7.0f), 0x1p-127f);
  EXPECT_EQ(delayed_scale(1.0f, 448.0f, -1000000, 7.0f), flt_max);
  EXPECT_TRUE(std::isfinite(inverse_scale(0x1p-127f)));
}

TEST(scale, delayed_is_the_fp32_division) {
  std::mt19937 rng(6);
  for (int i = 0; i < 200000; ++i) {
    const float amax = oracle::float_of(0x10000000u + static_cast<uint32_t>(rng()) % 0x60000000u);
    const int margin = static_cast<int>(rng() % 9) - 4;
    const float max = rng() % 2 ? 448.0f : 57344.0f;
    EXPECT_EQ(delayed_scale(amax, max, margin, 1.0f), std::ldexp(max, -margin) / amax);
  }
}

}  // namespace
