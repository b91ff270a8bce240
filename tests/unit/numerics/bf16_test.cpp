// BF16: rounding against search between the two neighbouring BF16 numbers, in double.
#include "numerics/bf16.h"

#include <gtest/gtest.h>

#include <random>

#include "oracle.h"

using namespace octet;

namespace {

// Neighbours are the BF16 numbers below and above |x|; the one past the largest finite counts as 2^128, as in IEEE rounding.
uint16_t nearest_bf16(float x) {
  if (std::isnan(x)) return 0x7FFF;
  const uint32_t a = oracle::bits(x) & 0x7FFFFFFFu, low = a >> 16;
  uint32_t best = low;
  if (a < 0x7F800000u) {
    const auto number = [](uint32_t h) { return h == 0x7F80u ? std::ldexp(1.0, 128) : static_cast<double>(oracle::float_of(h << 16)); };
    const double value = static_cast<double>(oracle::float_of(a));
    const double below = value - number(low), above = number(low + 1) - value;
    if (above < below || (above == below && low % 2 == 1)) best = low + 1;
  }
  return static_cast<uint16_t>(best | (std::signbit(x) ? 0x8000u : 0u));
}

TEST(bf16, every_value_round_trips) {
  for (uint32_t h = 0; h < 65536; ++h) {
    const float x = to_float(bf16{static_cast<uint16_t>(h)});
    EXPECT_EQ(oracle::bits(x), h << 16);
    EXPECT_EQ(to_bf16(x).bits, std::isnan(x) ? 0x7FFFu : h);
  }
}

TEST(bf16, ties_neighbours_and_random_bits) {
  int wrong = 0;
  const auto check = [&](uint32_t u) {
    const float x = oracle::float_of(u);
    if (to_bf16(x).bits != nearest_bf16(x) && ++wrong < 5) ADD_FAILURE() << std::hex << u << " gave " << to_bf16(x).bits;
  };
  for (uint32_t h = 0; h < 65536; ++h) {
    for (uint32_t low : {0x0000u, 0x0001u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) check(h << 16 | low);
  }
  std::mt19937 rng(5);
  for (int i = 0; i < 1000000; ++i) check(static_cast<uint32_t>(rng()));
  EXPECT_EQ(wrong, 0);
}

TEST(bf16, special_values) {
  EXPECT_EQ(to_bf16(std::numeric_limits<float>::infinity()).bits, 0x7F80);
  EXPECT_EQ(to_bf16(-std::numeric_limits<float>::infinity()).bits, 0xFF80);
  EXPECT_EQ(to_bf16(std::numeric_limits<float>::max()).bits, 0x7F80);
  EXPECT_EQ(to_bf16(-0.0f).bits, 0x8000);
  EXPECT_EQ(to_bf16(oracle::float_of(0x7F800001u)).bits, 0x7FFF);
  EXPECT_EQ(to_bf16(oracle::float_of(0xFFFFFFFFu)).bits, 0x7FFF);
  EXPECT_EQ(from_float<bf16>(1.0f).bits, 0x3F80);
  EXPECT_EQ(from_float<float>(1.1f), 1.1f);
}

}  // namespace
