// The accumulator model: exactness where it must be exact, agreement with a plain double version, and its published error.
#include "numerics/accumulate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "oracle.h"

using namespace octet;

namespace {

// The model written down in double: align to the largest exponent, truncate each term to 13 fraction bits, add, truncate.
double exponent_of(double v, int emin) { return std::max(std::ilogb(v), emin); }
float reference_step(const float* a, int emin_a, const float* b, int emin_b, int n, float acc) {
  double largest = -1e9;
  for (int i = 0; i < n; ++i) {
    if (a[i] != 0 && b[i] != 0) largest = std::max(largest, exponent_of(a[i], emin_a) + exponent_of(b[i], emin_b));
  }
  if (acc != 0) largest = std::max(largest, exponent_of(acc, -126));
  if (largest == -1e9) return 0;
  const double ulp = std::ldexp(1.0, static_cast<int>(largest) - 13);
  double sum = std::trunc(acc / ulp) * ulp;
  for (int i = 0; i < n; ++i) sum += std::trunc(static_cast<double>(a[i]) * static_cast<double>(b[i]) / ulp) * ulp;
  if (sum == 0) return 0;
  const double out = std::ldexp(1.0, static_cast<int>(exponent_of(sum, -126)) - 13);
  return static_cast<float>(std::trunc(sum / out) * out);
}

TEST(accumulate, small_integers_are_exact) {
  std::mt19937 rng(1);
  for (int trial = 0; trial < 200; ++trial) {
    float a[32], b[32];
    int64_t want = 0;
    for (int i = 0; i < 32; ++i) {
      const int x = static_cast<int>(rng() % 7) - 3, y = static_cast<int>(rng() % 7) - 3;
      a[i] = static_cast<float>(x), b[i] = static_cast<float>(y);
      want += x * y;
    }
    EXPECT_EQ(tensor_core_step(a, Dtype::e4m3, b, Dtype::e4m3, 32, 100.0f), static_cast<float>(want + 100));
  }
}

TEST(accumulate, equal_exponents_give_the_exact_sum_of_products) {
  // All factors in [1, 2): products of 3-bit fractions need 6 fraction bits, the sum of 16 positive ones 4 more bits: 13 suffice.
  std::mt19937 rng(2);
  for (int trial = 0; trial < 200; ++trial) {
    float a[16], b[16];
    double want = 0;
    for (int i = 0; i < 16; ++i) {
      a[i] = 1.0f + static_cast<float>(rng() % 8) / 8.0f, b[i] = 1.0f + static_cast<float>(rng() % 8) / 8.0f;
      want += static_cast<double>(a[i]) * static_cast<double>(b[i]);
    }
    EXPECT_EQ(static_cast<double>(tensor_core_step(a, Dtype::e4m3, b, Dtype::e4m3, 16, 0.0f)), want);
  }
}

TEST(accumulate, agrees_with_the_model_in_double) {
  std::mt19937 rng(3);
  for (int trial = 0; trial < 20000; ++trial) {
    const Dtype fa = rng() % 2 ? Dtype::e4m3 : Dtype::e5m2, fb = rng() % 2 ? Dtype::e4m3 : Dtype::e5m2;
    const int n = 1 + static_cast<int>(rng() % 32);
    const int span = 1 + static_cast<int>(rng() % 120);  // how far magnitudes spread, subnormals and zeros included
    const auto draw = [&](Dtype f) {
      const int drawn = static_cast<int>(rng() % static_cast<unsigned>(span)) + static_cast<int>(rng() % 8);
      const int code = std::min(drawn, int{format_info(f).max_code});
      return decode(f, static_cast<uint8_t>(code | (rng() % 2 ? 0x80 : 0)));
    };
    float a[32], b[32];
    for (int i = 0; i < n; ++i) a[i] = draw(fa), b[i] = draw(fb);
    float acc = 0.0f;
    if (rng() % 4) acc = std::ldexp(static_cast<float>(static_cast<int>(rng() % 2000001) - 1000000), static_cast<int>(rng() % 60) - 50);
    const float got = tensor_core_step(a, fa, b, fb, n, acc);
    const float want = reference_step(a, format_info(fa).emin, b, format_info(fb).emin, n, acc);
    ASSERT_EQ(got, want) << "trial " << trial;
  }
}

TEST(accumulate, truncates_terms_far_below_the_largest) {
  const float a[] = {1.0f, 0x1p-6f}, b[] = {1.0f, 0x1p-6f};
  EXPECT_EQ(tensor_core_step(a, Dtype::e4m3, b, Dtype::e4m3, 2, 0.0f), 1.0f + 0x1p-12f);
  EXPECT_EQ(tensor_core_step(a, Dtype::e4m3, b, Dtype::e4m3, 2, 2.0f), 3.0f + 0x1p-12f);  // the 13th fraction bit below 2^1
  EXPECT_EQ(tensor_core_step(a, Dtype::e4m3, b, Dtype::e4m3, 2, 4.0f), 5.0f);
  const float small[] = {-0x1p-9f}, one[] = {1.0f};
  EXPECT_EQ(tensor_core_step(small, Dtype::e4m3, one, Dtype::e4m3, 1, 64.0f), 64.0f);  // cut towards zero, not down
}

TEST(accumulate, edges) {
  const float zero[] = {0.0f, 0.0f}, x[] = {448.0f, 448.0f};
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(tensor_core_step(zero, Dtype::e4m3, x, Dtype::e4m3, 2, 0.0f), 0.0f);
  EXPECT_EQ(tensor_core_step(zero, Dtype::e4m3, x, Dtype::e4m3, 2, 1.5f), 1.5f);
  EXPECT_EQ(tensor_core_step(zero, Dtype::e4m3, x, Dtype::e4m3, 2, 1.0f + 0x1p-20f), 1.0f);
  EXPECT_EQ(tensor_core_step(zero, Dtype::e4m3, x, Dtype::e4m3, 2, 0x1p-130f), 0x1p-130f);
  EXPECT_EQ(tensor_core_step(zero, Dtype::e4m3, x, Dtype::e4m3, 2, 0x1p-145f), 0.0f);
  EXPECT_EQ(tensor_core_step(x, Dtype::e4m3, x, Dtype::e4m3, 2, 0.0f), 401408.0f);
  const float opposite[] = {448.0f, -448.0f};
  EXPECT_EQ(tensor_core_step(x, Dtype::e4m3, opposite, Dtype::e4m3, 2, 0.0f), 0.0f);
  const float bad_inf[] = {inf, 1.0f}, bad_nan[] = {nan, 1.0f};
  EXPECT_EQ(tensor_core_step(bad_inf, Dtype::e5m2, x, Dtype::e4m3, 2, 0.0f), inf);
  EXPECT_TRUE(std::isnan(tensor_core_step(bad_inf, Dtype::e5m2, zero, Dtype::e4m3, 2, 0.0f)));
  EXPECT_TRUE(std::isnan(tensor_core_step(bad_nan, Dtype::e5m2, x, Dtype::e4m3, 2, 0.0f)));
  EXPECT_EQ(tensor_core_step(x, Dtype::e4m3, x, Dtype::e4m3, 2, -inf), -inf);
  EXPECT_EQ(tensor_core_chain(x, Dtype::e4m3, x, Dtype::e4m3, 0, 2.5f), 2.5f);
}

TEST(accumulate, tail_shorter_than_a_step_and_interval) {
  std::mt19937 rng(4);
  std::vector<float> a(256, 0.0f), b(256, 0.0f);
  for (int i = 0; i < 200; ++i) {
    a[static_cast<size_t>(i)] = decode<Dtype::e4m3>(static_cast<uint8_t>(0x28 + rng() % 32));
    b[static_cast<size_t>(i)] = decode<Dtype::e5m2>(static_cast<uint8_t>(0x38 + rng() % 16));
  }
  EXPECT_EQ(tensor_core_chain(a.data(), Dtype::e4m3, b.data(), Dtype::e5m2, 200, 0.0f),
            tensor_core_chain(a.data(), Dtype::e4m3, b.data(), Dtype::e5m2, 256, 0.0f));
  EXPECT_EQ(tensor_core_promoted(a.data(), Dtype::e4m3, b.data(), Dtype::e5m2, 200, 128),
            tensor_core_promoted(a.data(), Dtype::e4m3, b.data(), Dtype::e5m2, 256, 128));
  EXPECT_EQ(tensor_core_promoted(a.data(), Dtype::e4m3, b.data(), Dtype::e5m2, 256, 128),
            tensor_core_chain(a.data(), Dtype::e4m3, b.data(), Dtype::e5m2, 128, 0.0f) +
                tensor_core_chain(a.data() + 128, Dtype::e4m3, b.data() + 128, Dtype::e5m2, 128, 0.0f));
}

// Deviation relative to the dot product's RMS over many draws, K = 4096, E4M3 per-row scales, and the one-sided bias.
struct Deviation {
  double chain, promoted, bias;
};
Deviation measure(float mean, bool positive, int64_t k, int trials) {
  std::mt19937 rng(1);
  std::normal_distribution<float> normal;
  double chain = 0, promoted = 0, total = 0, bias = 0, size = 0;
  std::vector<float> a(static_cast<size_t>(k)), b(a);
  for (int t = 0; t < trials; ++t) {
    double want = 0;
    for (auto* v : {&a, &b}) {
      float amax = 0;
      for (float& x : *v) x = mean + normal(rng), x = positive ? std::fabs(x) : x, amax = std::max(amax, std::fabs(x));
      for (float& x : *v) x = decode<Dtype::e4m3>(encode<Dtype::e4m3>(x * (448.0f / amax)));
    }
    for (size_t i = 0; i < a.size(); ++i) want += static_cast<double>(a[i]) * static_cast<double>(b[i]);
    const double c = static_cast<double>(tensor_core_chain(a.data(), Dtype::e4m3, b.data(), Dtype::e4m3, k, 0.0f)) - want;
    const double p = static_cast<double>(tensor_core_promoted(a.data(), Dtype::e4m3, b.data(), Dtype::e4m3, k, 128)) - want;
    chain += c * c, promoted += p * p, total += want * want, bias += want > 0 ? c : -c, size += std::fabs(want);
  }
  return {std::sqrt(chain / total), std::sqrt(promoted / total), bias / size};
}

TEST(accumulate, error_without_promotion_is_large_and_one_sided) {
  const Deviation zero_mean = measure(0.0f, false, 4096, 100);  // published: 0.14 % and 0.013 %
  EXPECT_NEAR(zero_mean.chain, 0.0014, 0.0005);
  EXPECT_NEAR(zero_mean.promoted, 0.00013, 0.00004);
  const Deviation half = measure(0.5f, false, 16384, 30);       // published: 4.2 %, bias -4.2 %, promoted 0.005 %
  EXPECT_NEAR(half.chain, 0.042, 0.006);
  EXPECT_NEAR(half.bias, -0.042, 0.006);
  EXPECT_LT(half.promoted, 0.0001);
  const Deviation all_positive = measure(0.0f, true, 16384, 30);  // published: 23.6 %, bias -23.7 %, promoted 0.060 %
  EXPECT_NEAR(all_positive.chain, 0.236, 0.02);
  EXPECT_NEAR(all_positive.bias, -0.237, 0.02);
  EXPECT_NEAR(all_positive.promoted, 0.0006, 0.0001);
}

}  // namespace
