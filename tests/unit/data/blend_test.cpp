#include "data/blend.h"

#include "unit/data/test_files.h"

namespace octet::data {
namespace {

std::vector<int64_t> sources_of(BlendOrder order, int64_t n) {
  std::vector<int64_t> out;
  for (int64_t i = 0; i < n; ++i) out.push_back(order.next().source);
  return out;
}

TEST(Blend, ReferenceVectors) {
  BlendOrder order = BlendOrder::weighted({0.5, 0.3, 0.2});
  std::vector<int64_t> sources, samples;
  for (int i = 0; i < 12; ++i) {
    const BlendPick pick = order.next();
    sources.push_back(pick.source);
    samples.push_back(pick.sample);
  }
  EXPECT_EQ(sources, (std::vector<int64_t>{0, 1, 2, 0, 1, 0, 2, 0, 1, 0, 0, 1}));
  EXPECT_EQ(samples, (std::vector<int64_t>{0, 0, 0, 1, 1, 2, 1, 3, 2, 4, 5, 3}));
  EXPECT_EQ(sources_of(BlendOrder::exhaustive({3, 5, 2}), 10), (std::vector<int64_t>{1, 0, 2, 1, 0, 1, 2, 1, 0, 1}));
  EXPECT_EQ(sources_of(BlendOrder::weighted({5, 3, 2}), 12), sources);  // weights are shares
}

TEST(Blend, SizesWithMegatronsSurplus) {
  const std::vector<double> weights = {0.5, 0.3, 0.2};
  const std::vector<std::vector<int64_t>> targets = {{500, 55, 5}, {300, 33, 3}, {200, 22, 2}}, built = {{503, 56, 6}, {302, 34, 4}, {201, 23, 3}};
  for (size_t k = 0; k < 3; ++k) {
    const std::vector<int64_t> sizes = {1000, 110, 10};
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(target_samples(weights[k], sizes[i]), targets[k][i]);
      EXPECT_EQ(built_samples(weights[k], sizes[i]), built[k][i]);
    }
  }
}

TEST(Blend, WeightsAreDividedByNumpysSum) {
  // np.float64 weights 1/(k+1): 50 and 128 values meet the eight interleaved sums, 300 the halving; adding one by one gives other bits. From NumPy 2.3.5.
  const auto weights = [](size_t n) {
    std::vector<double> w;
    for (size_t k = 0; k < n; ++k) w.push_back(1.0 / static_cast<double>(k + 1));
    return w;
  };
  EXPECT_EQ(normalised_weights(weights(3))[0], 1.0 / ((1.0 + 1.0 / 2) + 1.0 / 3));
  EXPECT_EQ(normalised_weights(weights(50))[0], 0x1.c73105c111daep-3);
  EXPECT_EQ(normalised_weights(weights(128))[0], 0x1.78f2081902c94p-3);
  EXPECT_EQ(normalised_weights(weights(300))[0], 0x1.45f9f3be2ac8ap-3);
  for (const std::vector<double>& bad : {std::vector<double>{1, 0}, {1, -1}, {1, std::numeric_limits<double>::quiet_NaN()}, {1, INFINITY}}) {
    expect_error(ExitCode::config, "no weight of a blend", [&] { normalised_weights(bad); });
  }
}

TEST(Blend, EverySourceKeepsItsShare) {
  const std::vector<double> weights = normalised_weights({7, 1, 0.3, 2.9, 11});
  BlendOrder order = BlendOrder::weighted(weights);
  for (int64_t i = 1; i <= 5000; ++i) {
    order.next();
    for (size_t k = 0; k < weights.size(); ++k) {
      EXPECT_LT(std::abs(static_cast<double>(order.taken()[k]) - weights[k] * static_cast<double>(i)), 2.0) << i << " " << k;
    }
  }
}

TEST(Blend, ExhaustivePassesTakeEverySampleOnceAndRepeatTheOrder) {
  const std::vector<int64_t> sizes = {3, 17, 1, 40, 8};
  BlendOrder order = BlendOrder::exhaustive(sizes);
  const std::vector<int64_t> first = sources_of(order, 69);
  for (int64_t pass = 0; pass < 3; ++pass) {
    std::vector<int64_t> sources;
    for (int64_t i = 0; i < 69; ++i) {
      const BlendPick pick = order.next();
      sources.push_back(pick.source);
      EXPECT_EQ(pick.sample / sizes[static_cast<size_t>(pick.source)], pass);  // so the source's block `pass`
    }
    EXPECT_EQ(sources, first);
    for (size_t k = 0; k < sizes.size(); ++k) EXPECT_EQ(order.taken()[k], (pass + 1) * sizes[k]);
  }
}

TEST(Blend, SkippingEqualsWalking) {
  BlendOrder walked = BlendOrder::weighted({0.21, 0.5, 0.29}), skipped = BlendOrder::weighted({0.21, 0.5, 0.29});
  for (int i = 0; i < 137; ++i) walked.next();
  skipped.skip_to(137);
  EXPECT_EQ(skipped.taken(), walked.taken());
  for (int i = 0; i < 50; ++i) EXPECT_EQ(skipped.next(), walked.next());
}

TEST(Blend, OnceEndsWhenAllAreSpent) {
  BlendOrder order = BlendOrder::once({2, 5}, {9, 1});
  EXPECT_EQ(sources_of(order, 7), (std::vector<int64_t>{0, 1, 0, 1, 1, 1, 1}));   // after 9:1 twice the first is spent
  order.skip_to(7);
  EXPECT_TRUE(order.ended());
  expect_error(ExitCode::data, "the blend order has 7 samples", [&] { order.next(); });
  BlendOrder recorded = BlendOrder::recorded({1, 0, 1}, 2);
  EXPECT_EQ(recorded.next(), (BlendPick{1, 0}));
  EXPECT_EQ(recorded.next(), (BlendPick{0, 0}));
  EXPECT_EQ(recorded.next(), (BlendPick{1, 1}));
  EXPECT_TRUE(recorded.ended());
}

}  // namespace
}  // namespace octet::data
