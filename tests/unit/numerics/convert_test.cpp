// Vector kernels: the bits of the scalar functions for every kind of input, position and length; non-finite detection.
#include "cpu/convert.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "core/error.h"
#include "numerics/formats.h"
#include "oracle.h"

using namespace octet;

namespace {

using oracle::inf, oracle::nan;

// All exponents with mantissas at the ends, at ties of every format and around them, both signs, and random bits.
std::vector<float> hard_inputs() {
  std::vector<float> v;
  for (uint32_t e = 0; e < 512; ++e) {
    for (int dropped = 20; dropped < 23; ++dropped) {
      for (uint32_t top = 0; top < 8; ++top) {
        const uint32_t tie = ((top << 20) | (1u << (dropped - 1))) & 0x7FFFFFu;
        for (uint32_t m : {tie, tie + 1, (tie - 1) & 0x7FFFFFu, top << 20}) v.push_back(oracle::float_of(e << 23 | (m & 0x7FFFFFu)));
      }
    }
  }
  std::mt19937 rng(17);
  for (int i = 0; i < 200000; ++i) v.push_back(oracle::float_of(static_cast<uint32_t>(rng())));
  for (int i = 0; i < 200000; ++i) v.push_back(oracle::float_of(0x30000000u + static_cast<uint32_t>(rng()) % 0x18000000u));
  return v;
}

bool same(float a, float b) { return oracle::bits(a) == oracle::bits(b) || (std::isnan(a) && std::isnan(b)); }

std::vector<bf16> as_bf16(const std::vector<float>& x) {
  std::vector<bf16> y;
  for (float v : x) y.push_back(to_bf16(v));
  return y;
}

TEST(convert, encode_equals_scalar) {
  const auto x = hard_inputs();
  const auto h = as_bf16(x);
  const auto n = static_cast<int64_t>(x.size());
  std::vector<uint8_t> q(x.size()), qh(x.size());
  for (const auto& l : oracle::layouts()) {
    for (float scale : {1.0f, 149.33333f, 0x1p-120f, std::numeric_limits<float>::max(), 0x1p-127f, -3.0f, inf, nan}) {
      cpu::encode_array(l.f, x.data(), scale, q.data(), n);
      cpu::encode_array(l.f, h.data(), scale, qh.data(), n);
      int wrong = 0;
      for (size_t i = 0; i < x.size(); ++i) {
        wrong += q[i] != encode(l.f, x[i] * scale) || qh[i] != encode(l.f, to_float(h[i]) * scale);
      }
      EXPECT_EQ(wrong, 0) << name(l.f) << " scale " << scale;
    }
  }
}

TEST(convert, encode_scales_equals_scalar) {
  const auto x = hard_inputs();
  const auto h = as_bf16(x);
  std::mt19937 rng(23);
  std::vector<float> scales;
  for (size_t i = 0; i < x.size(); ++i) {
    scales.push_back(std::ldexp(1.0f + static_cast<float>(rng() % 1000) / 1000.0f, static_cast<int>(rng() % 40) - 20));
  }
  std::vector<uint8_t> q(x.size()), qh(x.size());
  for (const auto& l : oracle::layouts()) {
    cpu::encode_array_scales(l.f, x.data(), scales.data(), q.data(), static_cast<int64_t>(x.size()));
    cpu::encode_array_scales(l.f, h.data(), scales.data(), qh.data(), static_cast<int64_t>(x.size()));
    int wrong = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      wrong += q[i] != encode(l.f, x[i] * scales[i]) || qh[i] != encode(l.f, to_float(h[i]) * scales[i]);
    }
    EXPECT_EQ(wrong, 0) << name(l.f);
  }
}

TEST(convert, decode_equals_scalar) {
  std::vector<uint8_t> q;
  for (int i = 0; i < 256 * 3 + 5; ++i) q.push_back(static_cast<uint8_t>(i));
  std::vector<float> x(q.size());
  for (const auto& l : oracle::layouts()) {
    for (float scale : {1.0f, 0.0066964286f, 0x1p127f, 0x1p-127f, std::numeric_limits<float>::max(), 0.0f, inf, nan}) {
      cpu::decode_array(l.f, q.data(), scale, x.data(), static_cast<int64_t>(q.size()));
      for (size_t i = 0; i < q.size(); ++i) {
        ASSERT_TRUE(same(x[i], decode(l.f, q[i]) * scale)) << name(l.f) << " code " << int{q[i]} << " scale " << scale;
      }
    }
  }
}

TEST(convert, every_length_and_no_write_beyond) {
  std::mt19937 rng(29);
  std::normal_distribution<float> normal;
  std::vector<float> x(160), scales(160, 0.5f);
  for (float& v : x) v = normal(rng);
  for (int64_t n = 0; n <= 130; ++n) {
    const auto m = static_cast<size_t>(n);
    std::vector<uint8_t> q(m + 1, 0xAA), qs(m + 1, 0xAA);
    cpu::encode_array(Dtype::e4m3, x.data() + 1, 0.5f, q.data(), n);
    cpu::encode_array_scales(Dtype::e4m3, x.data() + 1, scales.data() + 3, qs.data(), n);
    std::vector<float> back(m + 1, 99.0f), wide(m + 1, 99.0f);
    cpu::decode_array(Dtype::e4m3, q.data(), 2.0f, back.data(), n);
    std::vector<bf16> half(m + 1, bf16{0xAAAA});
    cpu::narrow(x.data() + 1, half.data(), n);
    cpu::widen(half.data(), wide.data(), n);
    for (size_t i = 0; i < m; ++i) {
      ASSERT_EQ(q[i], encode<Dtype::e4m3>(x[i + 1] * 0.5f));
      ASSERT_EQ(qs[i], q[i]);
      ASSERT_EQ(back[i], decode<Dtype::e4m3>(q[i]) * 2.0f);
      ASSERT_EQ(half[i].bits, to_bf16(x[i + 1]).bits);
      ASSERT_EQ(wide[i], to_float(half[i]));
    }
    ASSERT_TRUE(q[m] == 0xAA && qs[m] == 0xAA && back[m] == 99.0f && half[m].bits == 0xAAAA && wide[m] == 99.0f) << n;
  }
}

TEST(convert, narrow_and_widen_equal_scalar) {
  const auto x = hard_inputs();
  std::vector<bf16> h(x.size());
  cpu::narrow(x.data(), h.data(), static_cast<int64_t>(x.size()));
  for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(h[i].bits, to_bf16(x[i]).bits) << std::hex << oracle::bits(x[i]);
  std::vector<bf16> all(65536);
  for (uint32_t i = 0; i < 65536; ++i) all[i].bits = static_cast<uint16_t>(i);
  std::vector<float> y(all.size());
  cpu::widen(all.data(), y.data(), 65536);
  for (uint32_t i = 0; i < 65536; ++i) ASSERT_EQ(oracle::bits(y[i]), i << 16);
}

TEST(convert, amax_finds_the_largest_wherever_it_is) {
  for (int64_t n : {1, 7, 8, 31, 32, 33, 64, 77}) {
    std::vector<float> x(static_cast<size_t>(n), -0.25f);
    for (size_t i = 0; i < x.size(); ++i) {
      const float keep = x[i];
      x[i] = -3.0f;
      const auto h = as_bf16(x);
      EXPECT_EQ(cpu::amax_array(x.data(), n).amax, 3.0f);
      EXPECT_EQ(cpu::amax_array(h.data(), n).amax, 3.0f);
      EXPECT_EQ(cpu::amax_array(x.data(), n).nonfinite, 0);
      x[i] = keep;
    }
  }
  EXPECT_EQ(cpu::amax_array(static_cast<const float*>(nullptr), 0).amax, 0.0f);
  const float tiny[] = {0x1p-149f, -0.0f, 0x1p-148f};
  EXPECT_EQ(cpu::amax_array(tiny, 3).amax, 0x1p-148f);
}

TEST(convert, amax_propagates_and_counts_nonfinite) {
  for (float bad : {inf, -inf, nan, -nan, oracle::float_of(0x7F800001u)}) {
    for (size_t at : {size_t{0}, size_t{5}, size_t{40}, size_t{76}}) {
      std::vector<float> x(77, 1.0f);
      x[at] = bad;
      x[50] = nan;
      const auto h = as_bf16(x);
      for (const cpu::Amax& m : {cpu::amax_array(x.data(), 77), cpu::amax_array(h.data(), 77)}) {
        EXPECT_EQ(m.amax, inf);
        EXPECT_EQ(m.nonfinite, 2);
      }
    }
  }
  const float largest[] = {std::numeric_limits<float>::max()};
  EXPECT_EQ(cpu::amax_array(largest, 1).nonfinite, 0);
}

TEST(convert, amax_columns) {
  std::mt19937 rng(31);
  std::normal_distribution<float> normal;
  for (int64_t cols : {1, 5, 8, 13, 32, 45}) {
    const int64_t rows = 9, ld = cols + 3;
    std::vector<float> x(static_cast<size_t>(rows * ld), nan);  // the gap between rows must not be read as data
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) x[static_cast<size_t>(r * ld + c)] = oracle::float_of(oracle::bits(normal(rng)) & 0xFFFF0000u);
    }
    std::vector<float> want(static_cast<size_t>(cols), 0.75f);  // a running maximum: what is there counts
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        float& m = want[static_cast<size_t>(c)];
        m = std::max(m, std::fabs(x[static_cast<size_t>(r * ld + c)]));
      }
    }
    std::vector<float> got(static_cast<size_t>(cols), 0.75f), got_bf16(got);
    int64_t nonfinite = 5;
    cpu::amax_columns(x.data(), rows, cols, ld, got.data(), nonfinite);
    const auto h = as_bf16(x);
    cpu::amax_columns(h.data(), rows, cols, ld, got_bf16.data(), nonfinite);
    EXPECT_EQ(got, want);
    EXPECT_EQ(got_bf16, want);
    EXPECT_EQ(nonfinite, 5);

    const int64_t bad_column = cols / 2;
    x[static_cast<size_t>(2 * ld + bad_column)] = -nan;
    x[static_cast<size_t>(7 * ld + bad_column)] = -inf;
    x[static_cast<size_t>(4 * ld + cols - 1)] = inf;
    want[static_cast<size_t>(bad_column)] = want.back() = inf;
    cpu::amax_columns(x.data(), rows, cols, ld, got.data(), nonfinite);
    EXPECT_EQ(got, want);
    EXPECT_EQ(nonfinite, 8);
  }
}

TEST(convert, wide_formats_are_refused) {
  const float x[] = {1.0f};
  uint8_t q[] = {0};
  float y[] = {0.0f};
  for (Dtype f : {Dtype::f32, Dtype::bf16, Dtype::e8m0}) {
    EXPECT_THROW(cpu::encode_array(f, x, 1.0f, q, 1), Error);
    EXPECT_THROW(cpu::encode_array_scales(f, x, x, q, 1), Error);
    EXPECT_THROW(cpu::decode_array(f, q, 1.0f, y, 1), Error);
  }
}

}  // namespace
