// One AdamW element update, shared by both backends (ops/optimizer.h has the formula).
#pragma once
#include <cmath>

#include "numerics/master.h"

namespace octet {

struct AdamwStep {
  float lr, beta1, beta2, eps, weight_decay;
  float inv_bias1, inv_bias2;   // 1 / (1 - beta^t), computed in double
};

OCTET_HD inline void adamw_element(float& w, float& m, float& v, float grad, const AdamwStep& s, float grad_scale) {
  const float g = grad * grad_scale;
  m = fmaf(s.beta1, m, (1.0f - s.beta1) * g);
  v = fmaf(s.beta2, v, (1.0f - s.beta2) * (g * g));
  const float update = (m * s.inv_bias1) / (sqrtf(v * s.inv_bias2) + s.eps);
  w = resolve_tie(fmaf(-s.lr, fmaf(s.weight_decay, w, update), w));
}

}  // namespace octet
