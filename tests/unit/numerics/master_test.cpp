// FP32 masters in two halves.
#include "numerics/master.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>

using namespace octet;

namespace {

TEST(master, halves_keep_every_resolved_value) {
  // All lower halves below a sample of upper ones: both signs, zero, subnormals, odd and even, the largest.
  for (const uint32_t upper : {0x0000u, 0x0001u, 0x0002u, 0x007Fu, 0x0080u, 0x3F7Fu, 0x3F80u, 0x3F81u, 0x4049u, 0x7F7Eu, 0x7F7Fu}) {
    for (const uint32_t sign : {0u, 0x8000u}) {
      int moved = 0;
      for (uint32_t lower = 0; lower < 0x10000u; ++lower) {
        const float w = float_from_bits((upper | sign) << 16 | lower), resolved = resolve_tie(w);
        const bool tie_that_rounds_down = lower == 0x8000u && upper % 2 == 0;
        moved += bits_of(w) != bits_of(resolved);
        ASSERT_EQ(bits_of(resolved), bits_of(w) - (tie_that_rounds_down ? 1u : 0u));
        const SplitMaster s = split_master(resolved);
        ASSERT_EQ(s.weight.bits, to_bf16(resolved).bits);
        ASSERT_EQ(s.weight.bits, to_bf16(w).bits) << "moving a tie does not change the weight";
        ASSERT_EQ(bits_of(join_master(s.weight, s.remainder)), bits_of(resolved));
      }
      EXPECT_EQ(moved, upper % 2 == 0 ? 1 : 0);
    }
  }
}

TEST(master, what_is_not_finite_stays_so) {
  for (const uint32_t bits : {0x7F800000u, 0xFF800000u, 0x7FC00000u, 0x7F800001u, 0x7F808000u, 0xFFFF8000u, 0x7FFFFFFFu}) {
    const float w = float_from_bits(bits);
    const SplitMaster s = split_master(resolve_tie(w));
    const float back = join_master(s.weight, s.remainder);
    EXPECT_EQ(std::isnan(back), std::isnan(w)) << std::hex << bits;
    EXPECT_EQ(std::isinf(back), std::isinf(w)) << std::hex << bits;
  }
}

TEST(bf16, stochastic_rounding_never_turns_finite_values_into_infinity) {
  for (const uint32_t sign : {0u, 0x80000000u}) {
    for (const uint32_t bits : {0x7F7F0001u, 0x7F7F8000u, 0x7F7FFFFFu}) {
      for (const uint32_t random : {0u, 1u, 0x8000u, 0xFFFFu}) {
        EXPECT_EQ(to_bf16_stochastic(float_from_bits(bits | sign), random).bits, (bits | sign) >> 16) << std::hex << bits << " " << random;
      }
    }
    EXPECT_EQ(to_bf16_stochastic(float_from_bits(0x7F800000u | sign), 0xFFFFu).bits, (0x7F800000u | sign) >> 16);
  }
}

}  // namespace
