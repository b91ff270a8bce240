// Philox4x32-10: the known answers of Random123 (kat_vectors), independence of its keys, and the moments of normal().
#include "core/philox.h"

#include <gtest/gtest.h>

#include <set>

using namespace octet;

namespace {

TEST(philox, known_answers) {
  struct Row {
    std::array<uint32_t, 4> counter;
    std::array<uint32_t, 2> key;
    std::array<uint32_t, 4> want;
  };
  const Row rows[] = {
      {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
      {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
      {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}, {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
  };
  for (const Row& r : rows) EXPECT_EQ(Philox::rounds(r.counter, r.key), r.want);
}

TEST(philox, names_are_hashed_by_fnv1a) {
  // The vectors published with the algorithm.
  EXPECT_EQ(fnv1a64(""), 0xcbf29ce484222325ull);
  EXPECT_EQ(fnv1a64("a"), 0xaf63dc4c8601ec8cull);
  EXPECT_EQ(fnv1a64("foobar"), 0x85944171f73967e8ull);
}

TEST(philox, word_is_the_element_of_its_block) {
  const Philox rng(42, RngPurpose::init, "embed");
  for (uint64_t i : {0ull, 1ull, 3ull, 4ull, 1000003ull, (1ull << 34) + 2}) EXPECT_EQ(rng.word(i), rng.block(i / 4)[i % 4]) << i;
}

TEST(philox, every_part_of_the_key_matters) {
  std::set<std::array<uint32_t, 4>> seen;
  for (uint64_t seed : {1ull, 2ull, 1ull << 40}) {
    for (RngPurpose purpose : {RngPurpose::init, RngPurpose::stochastic_rounding}) {
      for (const char* name : {"layers.0.attn.qkv", "layers.1.attn.qkv"}) {
        for (uint64_t step : {0ull, 1ull}) {
          for (uint64_t index : {0ull, 1ull, 1ull << 32}) seen.insert(Philox(seed, purpose, name, step).block(index));
        }
      }
    }
  }
  EXPECT_EQ(seen.size(), 3u * 2 * 2 * 2 * 3);
}

TEST(philox, normal_moments) {
  const Philox rng(7, RngPurpose::init, "moments");
  const int n = 100000;
  double s1 = 0, s2 = 0, s3 = 0, s4 = 0, neighbours = 0, previous = 0;
  for (int i = 0; i < n; ++i) {
    const double x = rng.normal(static_cast<uint64_t>(i));
    s1 += x;
    s2 += x * x;
    s3 += x * x * x;
    s4 += x * x * x * x;
    neighbours += x * previous;
    previous = x;
  }
  // Five standard errors of each moment of N(0, 1): sqrt(Var x^k / n) with Var 1, 2, 15, 96.
  const double root = std::sqrt(static_cast<double>(n));
  EXPECT_NEAR(s1 / n, 0.0, 5.0 / root);
  EXPECT_NEAR(s2 / n, 1.0, 5.0 * std::sqrt(2.0) / root);
  EXPECT_NEAR(s3 / n, 0.0, 5.0 * std::sqrt(15.0) / root);
  EXPECT_NEAR(s4 / n, 3.0, 5.0 * std::sqrt(96.0) / root);
  EXPECT_NEAR(neighbours / n, 0.0, 5.0 / root);
}

TEST(philox, normal_is_finite_at_the_ends_of_the_uniform) {
  const Philox rng(3, RngPurpose::init, "tails");
  double largest = 0;
  for (uint64_t i = 0; i < 200000; ++i) largest = std::max(largest, std::fabs(rng.normal(i)));
  EXPECT_GT(largest, 4.0);
  EXPECT_LT(largest, 9.0);  // sqrt(2 * 54 ln 2): the largest value the construction can give
}

}  // namespace
