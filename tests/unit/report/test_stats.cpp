#include <cmath>
#include <gtest/gtest.h>

#include "core/error.h"
#include "report/stats.h"

namespace octet::stats {
namespace {

TEST(Stats, StudentTQuantilesMatchThePublishedTable) {
  // NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2.
  const struct {
    double p, df, t;
  } rows[] = {{0.975, 1, 12.706}, {0.975, 2, 4.303}, {0.975, 7, 2.365}, {0.975, 30, 2.042}, {0.975, 100, 1.984},
              {0.95, 1, 6.314},   {0.95, 10, 1.812}, {0.995, 5, 4.032}, {0.9, 3, 1.638}};
  for (const auto& row : rows) EXPECT_NEAR(student_t_quantile(row.p, row.df), row.t, 5e-4) << "p " << row.p << ", df " << row.df;
}

TEST(Stats, StudentTQuantilesMatchClosedForms) {
  for (double p : {0.6, 0.75, 0.9, 0.975, 0.999}) {
    EXPECT_NEAR(student_t_quantile(p, 1), std::tan(M_PI * (p - 0.5)), 1e-9 * std::tan(M_PI * (p - 0.5)));  // Cauchy
    const double a = 4 * p * (1 - p);
    EXPECT_NEAR(student_t_quantile(p, 2), 2 * (p - 0.5) * std::sqrt(2 / a), 1e-10);
  }
  EXPECT_EQ(student_t_quantile(0.5, 3), 0);
  EXPECT_DOUBLE_EQ(student_t_quantile(0.025, 9), -student_t_quantile(0.975, 9));
  EXPECT_NEAR(student_t_quantile(0.975, 1e7), 1.959964, 1e-5);
}

TEST(Stats, IncompleteBetaMatchesClosedForms) {
  for (double x : {0.0, 0.01, 0.3, 0.5, 0.9, 1.0}) {
    EXPECT_NEAR(incomplete_beta(1, 1, x), x, 1e-14);
    EXPECT_NEAR(incomplete_beta(2, 3, x), x * x * (6 - 8 * x + 3 * x * x), 1e-14);
    EXPECT_NEAR(incomplete_beta(0.5, 0.5, x), 2 / M_PI * std::asin(std::sqrt(x)), 1e-13);
  }
  EXPECT_THROW(incomplete_beta(0, 1, 0.5), Error);
}

TEST(Stats, Basics) {
  EXPECT_DOUBLE_EQ(mean({1, 2, 6}), 3);
  EXPECT_DOUBLE_EQ(sample_stddev({1, 2, 6}), std::sqrt(7.0));
  EXPECT_DOUBLE_EQ(root_mean_square({3, -4}), std::sqrt(12.5));
  EXPECT_DOUBLE_EQ(median({5, 1, 3}), 3);
  EXPECT_DOUBLE_EQ(median({4, 1, 3, 2}), 2.5);
  EXPECT_DOUBLE_EQ(median({NAN, 1, INFINITY, 3}), 2);
  EXPECT_TRUE(std::isnan(median({})) && std::isnan(mean({})) && std::isnan(sample_stddev({1})));
}

TEST(Stats, IntervalOfTheMean) {
  const auto interval = t_interval({1, 2, 3, 4, 5});
  ASSERT_TRUE(interval);
  const double half = 2.776445 * std::sqrt(2.5) / std::sqrt(5.0);
  EXPECT_NEAR(interval->mean, 3, 1e-12);
  EXPECT_NEAR(interval->lower, 3 - half, 1e-5);
  EXPECT_NEAR(interval->upper, 3 + half, 1e-5);
  EXPECT_FALSE(t_interval({1}));
}

TEST(Stats, PairsToResolveIsTheSmallestNumber) {
  const auto half = [](double s, double n) { return student_t_quantile(0.975, n - 1) * s / std::sqrt(n); };
  for (double distance : {0.01, 0.05, 0.3, 2.0}) {
    const auto n = pairs_to_resolve(0.1, distance, 2);
    ASSERT_TRUE(n);
    EXPECT_GT(*n, 2);
    EXPECT_LT(half(0.1, static_cast<double>(*n)), distance);
    if (*n > 3) {
      EXPECT_GE(half(0.1, static_cast<double>(*n - 1)), distance);
    }
  }
  EXPECT_FALSE(pairs_to_resolve(0.1, 0, 2));
  EXPECT_FALSE(pairs_to_resolve(1, 1e-9, 2));
}

}  // namespace
}  // namespace octet::stats
