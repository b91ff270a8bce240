// The 16-point transform against its definition, and NVFP4's two-level scales against theirs.
#include "numerics/hadamard.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "core/philox.h"
#include "numerics/scale.h"

using namespace octet;

namespace {

TEST(hadamard, is_the_signed_sylvester_matrix_over_four) {
  const int minus[] = {2, 5, 10, 11, 12, 13, 14, 15};   // the ones of pi's fraction, 0010 0100 0011 1111
  for (int k = 0; k < 16; ++k) {
    float v[16] = {};
    v[k] = 1.0f;
    hadamard16(v);
    bool negative = false;
    for (int m : minus) negative = negative || m == k;
    for (int i = 0; i < 16; ++i) {
      const int sign = std::popcount(static_cast<unsigned>(i & k)) % 2 ? -1 : 1;
      EXPECT_EQ(v[i], 0.25f * static_cast<float>(negative ? -sign : sign)) << i << " " << k;
    }
  }
}

TEST(hadamard, keeps_inner_products) {
  const Philox rng(3, RngPurpose::init, "hadamard");
  for (uint64_t trial = 0; trial < 100; ++trial) {
    float a[16], b[16];
    double before = 0, after = 0, size = 0;
    for (uint64_t i = 0; i < 16; ++i) {
      a[i] = static_cast<float>(rng.normal(64 * trial + i));
      b[i] = static_cast<float>(rng.normal(64 * trial + 32 + i));
      before += static_cast<double>(a[i]) * b[i];
      size += std::fabs(static_cast<double>(a[i]) * b[i]);
    }
    hadamard16(a);
    hadamard16(b);
    for (int i = 0; i < 16; ++i) after += static_cast<double>(a[i]) * b[i];
    EXPECT_NEAR(after, before, 1e-6 * size);
  }
}

TEST(two_level_scale, maps_the_largest_block_to_the_largest_codes) {
  for (float amax : {6.0f, 1.0f, 1e-20f, 3e38f, 2688.0f}) {
    const float tensor = two_level_tensor_scale(amax, 6.0f, 0.0f);
    const uint8_t code = two_level_block_code(amax, 6.0f, tensor);
    EXPECT_EQ(decode<Dtype::e4m3>(code), 448.0f) << amax;
    EXPECT_EQ(decode<Dtype::e2m1>(encode<Dtype::e2m1>(amax * two_level_multiplier(code, tensor))), 6.0f) << amax;
    EXPECT_NEAR(6.0 * static_cast<double>(two_level_scale_inv(code, tensor)) / static_cast<double>(amax), 1.0, 1e-6) << amax;
  }
}

TEST(two_level_scale, edges) {
  EXPECT_EQ(two_level_tensor_scale(0.0f, 6.0f, 0.0f), 1.0f);
  EXPECT_EQ(two_level_tensor_scale(std::numeric_limits<float>::infinity(), 6.0f, 0.0f), 1.0f);
  EXPECT_EQ(two_level_tensor_scale(1e-38f, 6.0f, 0.0f), std::numeric_limits<float>::max());
  // A block 2^-20 below the tensor's largest: its scale underflows in E4M3 and the block becomes zeros, without a NaN.
  const float tensor = two_level_tensor_scale(1.0f, 6.0f, 0.0f);
  const uint8_t code = two_level_block_code(0x1p-20f, 6.0f, tensor);
  EXPECT_EQ(code, 0);
  EXPECT_EQ(two_level_multiplier(code, tensor), 0.0f);
  EXPECT_EQ(two_level_scale_inv(code, tensor), 0.0f);
  EXPECT_EQ(two_level_block_code(std::numeric_limits<float>::infinity(), 6.0f, tensor), 0x7E);   // saturates
}

// Every largest code with every code below it, under tensor scales of all magnitudes: the code itself is among the candidates, and whichever is taken gives the scales back.
TEST(two_level_scale, a_factor_is_fitted_to_block_scales) {
  for (const float amax : {1.0f, 2687.0f, 0.7731f, 3e-7f, 1e30f, 3e38f, 1e-33f, 1e-38f}) {
    const float tensor = two_level_tensor_scale(amax, 6.0f, 0.0f);
    for (int top = 1; top <= 0x7E; ++top) {
      const float largest = two_level_scale_inv(static_cast<uint8_t>(top), tensor);
      unsigned misfits = 0;
      for (int code = 0; code <= top; ++code) misfits |= two_level_misfits(two_level_scale_inv(static_cast<uint8_t>(code), tensor), largest);
      ASSERT_NE(misfits & 0xFFu, 0xFFu) << "no candidate for code " << top << ", amax " << amax;
      const int candidate = two_level_candidate(misfits);
      const double factor = static_cast<double>(largest) / static_cast<double>(two_level_top_code(candidate));
      for (int code = 0; code <= top; ++code) {
        const float scale_inv = two_level_scale_inv(static_cast<uint8_t>(code), tensor);
        const uint8_t fitted = encode<Dtype::e4m3>(two_level_ratio(scale_inv, largest, candidate));
        // FP32 subnormals have fewer digits.
        const double digits = std::max(static_cast<double>(scale_inv) * 0x1p-22, 0x1p-149);
        EXPECT_NEAR(static_cast<double>(decode<Dtype::e4m3>(fitted)) * factor, static_cast<double>(scale_inv), digits) << "code " << code << " of " << top << ", amax " << amax;
        EXPECT_TRUE(top != 0x7E || fitted == code) << "the largest code is 448, so every code stays: " << code << " became " << int(fitted);
      }
    }
  }
  EXPECT_EQ(two_level_misfits(0.0f, 0.0f), 0u);
  EXPECT_EQ(two_level_ratio(0.0f, 0.0f, 0), 0.0f);
}

// Scales of two tensors have no common factor.
TEST(two_level_scale, what_has_no_factor_fits_no_candidate) {
  const float largest = two_level_scale_inv(0x7E, two_level_tensor_scale(1.0f, 6.0f, 0.0f));
  EXPECT_EQ(two_level_misfits(largest * 0.97f, largest), 0xFFu);
}

}  // namespace
