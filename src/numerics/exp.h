// exp() that both backends compute alike.
#pragma once
#include <cmath>

#include "numerics/bits.h"

namespace octet {

// exp(x), relative error below 2e-7 on [-87, 88]; smaller x give 0, larger ones are clamped to 88.
// Range reduction by ln 2 in two parts and a degree-6 polynomial (Cephes expf coefficients); branch-free, so loops over it vectorise.
// Every fused operation is written as one: no compiler may form others (-ffp-contract=off, -fmad=false).
OCTET_HD inline float fast_exp(float x) {
  const float clamped = x > 88.0f ? 88.0f : x;
  const float n = rintf(clamped * 1.44269504088896341f);
  float r = fmaf(n, -0.693359375f, clamped);
  r = fmaf(n, 2.12194440e-4f, r);
  float p = 1.9875691500e-4f;
  p = fmaf(p, r, 1.3981999507e-3f);
  p = fmaf(p, r, 8.3334519073e-3f);
  p = fmaf(p, r, 4.1665795894e-2f);
  p = fmaf(p, r, 1.6666665459e-1f);
  p = fmaf(p, r, 5.0000001201e-1f);
  p = fmaf(p, r * r, r) + 1.0f;
  const float bounded = n > -126.0f ? n : -126.0f;  // NaN goes to -126: it is in p already, and has no integer
  const float scale = float_from_bits(static_cast<uint32_t>(static_cast<int32_t>(bounded) + 127) << 23);
  return x < -87.0f ? 0.0f : p * scale;
}

}  // namespace octet
