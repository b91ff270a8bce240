// Formats: published test vectors, every code, every BF16 input against exhaustive search.
#include "numerics/formats.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <utility>

#include "oracle.h"

using namespace octet;

namespace {

using oracle::inf, oracle::nan;

struct Fp8Vector {
  float x;
  int e4m3, e5m2;
};

TEST(formats, fp8_vectors) {
  const Fp8Vector vectors[] = {
      {0.0f, 0x00, 0x00}, {-0.0f, 0x80, 0x80}, {1.0f, 0x38, 0x3C}, {0.1f, 0x1D, 0x2E}, {0.3f, 0x2A, 0x35}, {-1.5f, 0xBC, 0xBE},
      {1.0625f, 0x38, 0x3C}, {1.125f, 0x39, 0x3C}, {1.1875f, 0x3A, 0x3D}, {1.375f, 0x3B, 0x3E}, {3.14159265f, 0x45, 0x42},
      {17.0f, 0x58, 0x4C}, {18.0f, 0x59, 0x4C}, {19.0f, 0x5A, 0x4D}, {21.0f, 0x5A, 0x4D}, {22.0f, 0x5B, 0x4E}, {23.0f, 0x5C, 0x4E},
      {448.0f, 0x7E, 0x5F}, {-448.0f, 0xFE, 0xDF}, {463.9f, 0x7E, 0x5F}, {464.0f, 0x7E, 0x5F}, {464.1f, 0x7E, 0x5F}, {480.0f, 0x7E, 0x60},
      {1000.0f, 0x7E, 0x64}, {57344.0f, 0x7E, 0x7B}, {61439.0f, 0x7E, 0x7B}, {61440.0f, 0x7E, 0x7B}, {1e6f, 0x7E, 0x7B},
      {inf, 0x7E, 0x7B}, {-inf, 0xFE, 0xFB}, {nan, 0x7F, 0x7F}, {-nan, 0x7F, 0x7F},
      {0.015625f, 0x08, 0x24}, {0.013671875f, 0x07, 0x23}, {0.0029296875f, 0x02, 0x1A}, {0.001953125f, 0x01, 0x18},
      {0.00146484375f, 0x01, 0x16}, {0.0009765626f, 0x01, 0x14}, {0.0009765625f, 0x00, 0x14}, {6.103515625e-5f, 0x00, 0x04},
      {2.288818359375e-5f, 0x00, 0x02}, {1.52587890625e-5f, 0x00, 0x01}, {7.7e-6f, 0x00, 0x01}, {7.62939453125e-6f, 0x00, 0x00}};
  for (const auto& v : vectors) {
    EXPECT_EQ(encode<Dtype::e4m3>(v.x), v.e4m3) << v.x;
    EXPECT_EQ(encode<Dtype::e5m2>(v.x), v.e5m2) << v.x;
  }
  const std::pair<int, float> decoded_e4m3[] = {{0x38, 1.0f}, {0x1D, 0.1015625f}, {0x2A, 0.3125f}, {0xBC, -1.5f}, {0x39, 1.125f},
      {0x3A, 1.25f}, {0x3B, 1.375f}, {0x45, 3.25f}, {0x58, 16.0f}, {0x59, 18.0f}, {0x5A, 20.0f}, {0x5B, 22.0f}, {0x5C, 24.0f},
      {0x7E, 448.0f}, {0x08, 0x1p-6f}, {0x07, 0.013671875f}, {0x02, 0.00390625f}, {0x01, 0x1p-9f}};
  for (const auto& [code, x] : decoded_e4m3) EXPECT_EQ(decode<Dtype::e4m3>(static_cast<uint8_t>(code)), x) << code;
  const std::pair<int, float> decoded_e5m2[] = {{0x3C, 1.0f}, {0x2E, 0.09375f}, {0x35, 0.3125f}, {0xBE, -1.5f}, {0x3D, 1.25f}, {0x3E, 1.5f},
      {0x42, 3.0f}, {0x4C, 16.0f}, {0x4D, 20.0f}, {0x4E, 24.0f}, {0x5F, 448.0f}, {0xDF, -448.0f}, {0x60, 512.0f}, {0x64, 1024.0f},
      {0x7B, 57344.0f}, {0x7C, inf}, {0xFC, -inf}, {0x04, 0x1p-14f}, {0x02, 0x1p-15f}, {0x01, 0x1p-16f}};
  for (const auto& [code, x] : decoded_e5m2) EXPECT_EQ(decode<Dtype::e5m2>(static_cast<uint8_t>(code)), x) << code;
}

struct SmallVector {
  float x;
  int e2m1, e3m2, e2m3;
};

TEST(formats, fp6_and_fp4_vectors) {
  const SmallVector vectors[] = {{0.0f, 0x0, 0x00, 0x00}, {-0.0f, 0x8, 0x20, 0x20}, {0.0625f, 0x0, 0x01, 0x00}, {0.09375f, 0x0, 0x02, 0x01},
      {0.25f, 0x0, 0x04, 0x02}, {0.3f, 0x1, 0x05, 0x02}, {0.75f, 0x2, 0x0A, 0x06}, {1.0625f, 0x2, 0x0C, 0x08}, {1.125f, 0x2, 0x0C, 0x09},
      {1.375f, 0x3, 0x0E, 0x0B}, {-1.5f, 0xB, 0x2E, 0x2C}, {2.5f, 0x4, 0x11, 0x12}, {3.14159265f, 0x5, 0x12, 0x15}, {5.0f, 0x6, 0x15, 0x1A},
      {7.0f, 0x7, 0x17, 0x1E}, {7.25f, 0x7, 0x17, 0x1E}, {7.5f, 0x7, 0x18, 0x1F}, {22.0f, 0x7, 0x1E, 0x1F}, {30.0f, 0x7, 0x1F, 0x1F},
      {100.0f, 0x7, 0x1F, 0x1F}, {inf, 0x7, 0x1F, 0x1F}, {-inf, 0xF, 0x3F, 0x3F}, {nan, 0x7, 0x1F, 0x1F}, {-nan, 0x7, 0x1F, 0x1F}};
  for (const auto& v : vectors) {
    EXPECT_EQ(encode<Dtype::e2m1>(v.x), v.e2m1) << v.x;
    EXPECT_EQ(encode<Dtype::e3m2>(v.x), v.e3m2) << v.x;
    EXPECT_EQ(encode<Dtype::e2m3>(v.x), v.e2m3) << v.x;
  }
  const float e2m1[] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  for (uint8_t c = 0; c < 8; ++c) EXPECT_EQ(decode<Dtype::e2m1>(c), e2m1[c]);
  EXPECT_EQ(decode<Dtype::e3m2>(0x1F), 28.0f);
  EXPECT_EQ(decode<Dtype::e3m2>(0x05), 0.3125f);
  EXPECT_EQ(decode<Dtype::e3m2>(0x1E), 24.0f);
  EXPECT_EQ(decode<Dtype::e2m3>(0x1F), 7.5f);
  EXPECT_EQ(decode<Dtype::e2m3>(0x15), 3.25f);
  EXPECT_EQ(decode<Dtype::e2m3>(0x01), 0.125f);
}

TEST(formats, e8m0_vectors) {
  struct Vector {
    uint32_t bits;
    int rz, rp;
  };
  const Vector vectors[] = {{0x00000000, 0x00, 0x00}, {0x00000001, 0x00, 0x00}, {0x00400000, 0x00, 0x00}, {0x00400001, 0x00, 0x01},
      {0x00600000, 0x00, 0x01}, {0x00800000, 0x01, 0x01}, {0x00800001, 0x01, 0x02}, {0x3F000000, 0x7E, 0x7E}, {0x3F800000, 0x7F, 0x7F},
      {0x3F800001, 0x7F, 0x80}, {0x3FC00000, 0x7F, 0x80}, {0x40000000, 0x80, 0x80}, {0x40400000, 0x80, 0x81}, {0x3B124925, 0x76, 0x77},
      {oracle::bits(449.0f / 448.0f), 0x7F, 0x80}, {0x7F000000, 0xFE, 0xFE}, {0x7F000001, 0xFE, 0xFE}, {0x7F7FFFFF, 0xFE, 0xFE},
      {0x7F800000, 0xFE, 0xFE}, {0x7FC00000, 0xFF, 0xFF}, {0xFFC00000, 0xFF, 0xFF}, {0xC0000000, 0x80, 0x80}};
  for (const auto& v : vectors) {
    EXPECT_EQ(e8m0_encode_rz(oracle::float_of(v.bits)), v.rz) << std::hex << v.bits;
    EXPECT_EQ(e8m0_encode_rp(oracle::float_of(v.bits)), v.rp) << std::hex << v.bits;
  }
}

TEST(formats, e8m0_codes) {
  for (int c = 0; c < 255; ++c) {
    const auto code = static_cast<uint8_t>(c);
    EXPECT_EQ(static_cast<double>(e8m0_decode(code)), std::ldexp(1.0, c - 127));
    EXPECT_EQ(static_cast<double>(e8m0_reciprocal(code)), std::ldexp(1.0, 127 - c));
    EXPECT_EQ(e8m0_encode_rz(e8m0_decode(code)), code);
    EXPECT_EQ(e8m0_encode_rp(e8m0_decode(code)), code);
  }
  EXPECT_EQ(bits_of(e8m0_decode(0)), 0x00400000u);
  EXPECT_EQ(bits_of(e8m0_reciprocal(254)), 0x00400000u);
  EXPECT_TRUE(std::isnan(e8m0_decode(255)));
  EXPECT_TRUE(std::isnan(e8m0_reciprocal(255)));
}

TEST(formats, e8m0_of_every_bf16_is_floor_and_ceil_of_log2) {
  for (uint32_t h = 1; h < 0x7F80; ++h) {
    const float x = oracle::float_of(h << 16);
    int e;
    const double m = std::frexp(static_cast<double>(x), &e);  // x = m 2^e, m in [0.5, 1)
    const int floor_log2 = e - 1, ceil_log2 = m == 0.5 ? e - 1 : e;
    EXPECT_EQ(e8m0_encode_rz(x), std::clamp(floor_log2 + 127, 0, 254)) << h;
    EXPECT_EQ(e8m0_encode_rp(x), std::clamp(ceil_log2 + 127, 0, 254)) << h;
    EXPECT_EQ(e8m0_encode_rp(-x), e8m0_encode_rp(x));
  }
}

TEST(formats, facts_follow_from_the_layout) {
  for (const auto& l : oracle::layouts()) {
    const FormatInfo i = format_info(l.f);
    const auto v = oracle::positive_values(l);
    EXPECT_EQ(i.exponent_bits, l.exponent_bits);
    EXPECT_EQ(i.mantissa_bits, l.mantissa_bits);
    EXPECT_EQ(i.bias, l.bias);
    EXPECT_EQ(static_cast<double>(i.max_finite), v.back());
    EXPECT_EQ(i.max_code, v.size() - 1);
    EXPECT_EQ(static_cast<double>(i.min_subnormal), v[1]);
    EXPECT_EQ(static_cast<double>(i.min_normal), v[size_t{1} << l.mantissa_bits]);
    EXPECT_EQ(i.emax, std::ilogb(v.back()));
    EXPECT_EQ(i.emin, std::ilogb(static_cast<double>(i.min_normal)));
    EXPECT_TRUE(i.is_signed);
    EXPECT_EQ(i.has_inf, l.f == Dtype::e5m2);
    EXPECT_EQ(i.has_nan, l.f == Dtype::e5m2 || l.f == Dtype::e4m3);
    EXPECT_TRUE(is_element_format(l.f));
    EXPECT_TRUE(std::is_sorted(v.begin(), v.end()));
  }
  EXPECT_EQ(format_info(Dtype::e8m0).max_finite, 0x1p127f);
  EXPECT_EQ(format_info(Dtype::bf16).exponent_bits, 0);
  EXPECT_FALSE(is_element_format(Dtype::bf16));
  EXPECT_FALSE(is_element_format(Dtype::e8m0));
}

TEST(formats, every_code_decodes_and_encodes_back) {
  for (const auto& l : oracle::layouts()) {
    for (unsigned c = 0; c < 256; ++c) {
      const unsigned code = c & (oracle::codes(l) - 1);  // bits above the format are ignored
      const double want = oracle::value(l, code);
      const float got = decode(l.f, static_cast<uint8_t>(c));
      if (std::isnan(want)) {
        EXPECT_TRUE(std::isnan(got)) << name(l.f) << c;
        EXPECT_EQ(encode(l.f, got), 0x7F);
        continue;
      }
      EXPECT_EQ(static_cast<double>(got), want) << name(l.f) << c;
      EXPECT_EQ(std::signbit(got), std::signbit(want)) << name(l.f) << c;
      const unsigned back = std::isinf(want) ? (code & 0x80u) | 0x7Bu : code;
      EXPECT_EQ(encode(l.f, got), back) << name(l.f) << c;
    }
  }
}

TEST(formats, every_bf16_input_against_search) {
  for (const auto& l : oracle::layouts()) {
    const auto positive = oracle::positive_values(l);
    int wrong = 0;
    for (uint32_t h = 0; h < 65536; ++h) {
      const float x = oracle::float_of(h << 16);
      const uint8_t want = oracle::nearest(l, positive, x), got = encode(l.f, x);
      if (want != got && ++wrong < 5) ADD_FAILURE() << name(l.f) << " of " << x << ": " << int{got} << ", nearest is " << int{want};
    }
    EXPECT_EQ(wrong, 0);
  }
}

// Around every tie and every value, in units of the last place of FP32, where BF16 inputs do not reach.
TEST(formats, neighbourhood_of_ties_against_search) {
  for (const auto& l : oracle::layouts()) {
    const auto positive = oracle::positive_values(l);
    for (size_t c = 0; c + 1 < positive.size(); ++c) {
      for (const double centre : {positive[c], (positive[c] + positive[c + 1]) / 2}) {
        const uint32_t u = oracle::bits(static_cast<float>(centre));
        for (uint32_t d = 0; d < 5; ++d) {
          if (u + d < 2) continue;
          const float x = oracle::float_of(u + d - 2);
          EXPECT_EQ(encode(l.f, x), oracle::nearest(l, positive, x)) << name(l.f) << " " << x;
          EXPECT_EQ(encode(l.f, -x), oracle::nearest(l, positive, -x)) << name(l.f) << " " << -x;
        }
      }
    }
  }
}

TEST(formats, monotone_and_symmetric) {
  std::mt19937 rng(7);
  for (const auto& l : oracle::layouts()) {
    const uint8_t sign = static_cast<uint8_t>(oracle::codes(l) / 2);
    float previous = 0;
    for (uint32_t u = 0; u < 0x7F800000u; u += 0x3000u + static_cast<uint32_t>(rng()) % 0x2000u) {
      const float x = oracle::float_of(u), y = decode(l.f, encode(l.f, x));
      EXPECT_GE(y, previous) << name(l.f) << " " << x;
      EXPECT_EQ(encode(l.f, -x), encode(l.f, x) ^ sign);
      previous = y;
    }
    EXPECT_EQ(previous, format_info(l.f).max_finite);
  }
}

TEST(formats, wide_types_give_poison) {
  for (Dtype f : {Dtype::f32, Dtype::bf16, Dtype::i32, Dtype::u8}) {
    EXPECT_EQ(encode(f, 1.0f), 0xFF);
    EXPECT_EQ(encode_stochastic(f, 1.0f, 0), 0xFF);
    EXPECT_TRUE(std::isnan(decode(f, 0x38)));
  }
  EXPECT_EQ(encode(Dtype::e8m0, 3.0f), 0x81);
  EXPECT_EQ(decode(Dtype::e8m0, 0x81), 4.0f);
}

}  // namespace
