// Independent definitions the numerics tests compare with: tables of all values of a format, computed from its bit layout in
// double, and conversion by search. Shares no code with src/numerics.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "core/dtype.h"

namespace oracle {

using octet::Dtype;

inline constexpr float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();

struct Layout {
  Dtype f;
  int exponent_bits, mantissa_bits, bias;
};
inline const std::vector<Layout>& layouts() {
  static const std::vector<Layout> all{
      {Dtype::e4m3, 4, 3, 7}, {Dtype::e5m2, 5, 2, 15}, {Dtype::e3m2, 3, 2, 3}, {Dtype::e2m3, 2, 3, 1}, {Dtype::e2m1, 2, 1, 1}};
  return all;
}

inline float float_of(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}
inline uint32_t bits(float x) {
  uint32_t u;
  std::memcpy(&u, &x, sizeof u);
  return u;
}

// The value of a code whose bits are read as sign, exponent, mantissa; NaN and Inf where the format has them.
inline double value(const Layout& l, unsigned code) {
  const int sign_shift = l.exponent_bits + l.mantissa_bits;
  const unsigned m = code & ((1u << l.mantissa_bits) - 1), e = (code >> l.mantissa_bits) & ((1u << l.exponent_bits) - 1);
  const double sign = (code >> sign_shift) & 1u ? -1.0 : 1.0;
  if (l.f == Dtype::e4m3 && e == 15 && m == 7) return std::numeric_limits<double>::quiet_NaN();
  if (l.f == Dtype::e5m2 && e == 31) return m ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  const double fraction = std::ldexp(static_cast<double>(m), -l.mantissa_bits);
  if (e == 0) return sign * std::ldexp(fraction, 1 - l.bias);
  return sign * std::ldexp(1.0 + fraction, static_cast<int>(e) - l.bias);
}

inline unsigned codes(const Layout& l) { return 1u << (1 + l.exponent_bits + l.mantissa_bits); }

// Finite non-negative values, in code order (which is also numerical order: the tests check it).
inline std::vector<double> positive_values(const Layout& l) {
  std::vector<double> v;
  for (unsigned c = 0; c < codes(l) / 2; ++c) {
    if (std::isfinite(value(l, c))) v.push_back(value(l, c));
  }
  return v;
}

// Code of the value nearest to x by exhaustive search, ties to the even code, saturating.
inline uint8_t nearest(const Layout& l, const std::vector<double>& positive, float x) {
  if (std::isnan(x)) return l.f == Dtype::e4m3 || l.f == Dtype::e5m2 ? 0x7F : static_cast<uint8_t>(positive.size() - 1);
  // Beyond the range the largest is nearest; distances there would all round to the same double.
  const double a = std::min(std::fabs(static_cast<double>(x)), positive.back());
  size_t best = 0;
  for (size_t c = 1; c < positive.size(); ++c) {
    const double d = std::fabs(positive[c] - a), b = std::fabs(positive[best] - a);
    if (d < b || (d == b && c % 2 == 0)) best = c;
  }
  return static_cast<uint8_t>(best | (std::signbit(x) ? codes(l) / 2 : 0u));
}

}  // namespace oracle
