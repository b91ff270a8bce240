// Stochastic rounding: exact values stay, only neighbours appear, the mean is the input, saturation.
#include <gtest/gtest.h>

#include <random>

#include "numerics/bf16.h"
#include "numerics/formats.h"
#include "oracle.h"

using namespace octet;

namespace {

TEST(stochastic, representable_values_stay) {
  for (const auto& l : oracle::layouts()) {
    for (unsigned c = 0; c < oracle::codes(l); ++c) {
      if (!std::isfinite(oracle::value(l, c))) continue;
      const float x = static_cast<float>(oracle::value(l, c));
      for (uint32_t random : {0u, 1u, 0x7FFFFFFFu, 0x80000000u, 0xFFFFFFFFu}) EXPECT_EQ(encode_stochastic(l.f, x, random), c) << name(l.f);
    }
  }
}

TEST(stochastic, saturates_and_marks_nan) {
  using oracle::inf, oracle::nan;
  for (const auto& l : oracle::layouts()) {
    const FormatInfo f = format_info(l.f);
    const uint8_t sign = static_cast<uint8_t>(oracle::codes(l) / 2);
    for (uint32_t random : {0u, 0x80000000u, 0xFFFFFFFFu}) {
      for (float x : {f.max_finite * 1.0001f, f.max_finite * 1.3f, 3e38f, inf}) {
        EXPECT_EQ(encode_stochastic(l.f, x, random), f.max_code);
        EXPECT_EQ(encode_stochastic(l.f, -x, random), f.max_code | sign);
      }
      EXPECT_EQ(encode_stochastic(l.f, nan, random), f.nan_code);
    }
  }
}

// The exact probability, found by bisection over the random word: up for all words below a threshold, down from it on.
TEST(stochastic, probability_is_the_distance_to_the_lower_neighbour) {
  for (const auto& l : oracle::layouts()) {
    const auto v = oracle::positive_values(l);
    for (size_t c = 0; c + 1 < v.size(); ++c) {
      for (double part : {0.03, 0.25, 0.5, 0.77, 0.999}) {
        const float x = static_cast<float>(v[c] + part * (v[c + 1] - v[c]));
        uint64_t low = 0, high = uint64_t{1} << 32;  // rounds up below the threshold in [low, high]
        while (low < high) {
          const uint64_t mid = (low + high) / 2;
          if (encode_stochastic(l.f, x, static_cast<uint32_t>(mid)) == c + 1) low = mid + 1;
          else high = mid;
        }
        const double probability = std::ldexp(static_cast<double>(low), -32);
        EXPECT_NEAR(probability, (static_cast<double>(x) - v[c]) / (v[c + 1] - v[c]), 0x1p-32) << name(l.f) << " " << x;
      }
    }
  }
}

TEST(stochastic, mean_and_neighbours_on_random_words) {
  std::mt19937 rng(11);
  constexpr int n = 20000;
  for (const auto& l : oracle::layouts()) {
    const auto v = oracle::positive_values(l);
    const FormatInfo f = format_info(l.f);
    // Below, inside and above the subnormal range, negative too, far below the smallest subnormal, and the top interval.
    const float inputs[] = {f.min_subnormal * 0.01f, f.min_subnormal * 0.3f, -f.min_subnormal * 1.7f, f.min_normal * 1.03f,
                            1.2345f, -2.9f, f.max_finite * 0.99f};
    for (float x : inputs) {
      const double a = std::fabs(static_cast<double>(x));
      size_t lower = 0;
      while (lower + 1 < v.size() && v[lower + 1] <= a) ++lower;
      const double step = lower + 1 < v.size() ? v[lower + 1] - v[lower] : 0, p = step > 0 ? (a - v[lower]) / step : 0;
      double sum = 0;
      for (int i = 0; i < n; ++i) {
        const double y = static_cast<double>(decode(l.f, encode_stochastic(l.f, x, static_cast<uint32_t>(rng()))));
        ASSERT_TRUE(std::fabs(y) == v[lower] || std::fabs(y) == v[lower] + step) << name(l.f) << " " << x << " gave " << y;
        sum += y;
      }
      const double sigma = step * std::sqrt(p * (1 - p) / n);
      EXPECT_LE(std::fabs(sum / n - static_cast<double>(x)), 5 * sigma) << name(l.f) << " " << x;
    }
  }
}

TEST(stochastic, bf16_mean_and_neighbours) {
  std::mt19937 rng(13);
  constexpr int n = 20000;
  for (float x : {1.001f, -3.14159265f, 1e-30f, 1e-40f, 65504.5f}) {
    const double below = static_cast<double>(oracle::float_of(oracle::bits(x) & 0xFFFF0000u));
    const double above = static_cast<double>(oracle::float_of((oracle::bits(x) & 0xFFFF0000u) + 0x10000u));
    double sum = 0;
    for (int i = 0; i < n; ++i) {
      const double y = static_cast<double>(to_float(to_bf16_stochastic(x, static_cast<uint32_t>(rng()))));
      ASSERT_TRUE(y == below || y == above);
      sum += y;
    }
    const double p = (static_cast<double>(x) - below) / (above - below);
    EXPECT_LE(std::fabs(sum / n - static_cast<double>(x)), 5 * std::fabs(above - below) * std::sqrt(p * (1 - p) / n)) << x;
  }
  EXPECT_EQ(to_bf16_stochastic(1.5f, 0xFFFFFFFFu).bits, 0x3FC0);
  EXPECT_EQ(to_bf16_stochastic(std::numeric_limits<float>::infinity(), 0xFFFFFFFFu).bits, 0x7F80);
  EXPECT_EQ(to_bf16_stochastic(oracle::float_of(0x7F800001u), 0xFFFFFFFFu).bits, 0x7FFF);
}

}  // namespace
