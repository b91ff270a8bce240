// FP8 health: what quantizing a tensor cost, gathered by the quantize kernels while they have both the values and the codes.
//
// All of it is over the finite elements of one image of one tensor; micro-batches of a step merge. x is the value that was quantized (after a Hadamard
// transform, where the recipe has one), q = decode(code) * scale_inv what a GEMM reads.
//
//   underflow   x != 0 whose code is zero                                     (Transformer Engine's underflows%)
//   saturated   |fl32(x * scale)| > largest value + half its spacing: further above the range than rounding explains
//   sqnr_db     10 log10(sum x^2 / sum (q - x)^2)
//   cosine      sum x q / sqrt(sum x^2 sum q^2)
//   scales      multipliers of the blocks whose amax is finite and not zero
// Read sqnr_db beside underflow: large elements dominate it. docs/numerics.md, "Health statistics".
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>

namespace octet {

struct ImageHealth {
  int64_t elements = 0, nonfinite = 0, underflow = 0, saturated = 0;
  float amax = 0;                                                      // of finite elements
  float scale_min = std::numeric_limits<float>::infinity(), scale_max = 0;
  double sum_xx = 0, sum_qq = 0, sum_xq = 0, sum_ee = 0;

  void merge(const ImageHealth& o) {
    elements += o.elements;
    nonfinite += o.nonfinite;
    underflow += o.underflow;
    saturated += o.saturated;
    amax = std::max(amax, o.amax);
    scale_min = std::min(scale_min, o.scale_min);
    scale_max = std::max(scale_max, o.scale_max);
    sum_xx += o.sum_xx;
    sum_qq += o.sum_qq;
    sum_xq += o.sum_xq;
    sum_ee += o.sum_ee;
  }
  double underflow_share() const { return elements ? static_cast<double>(underflow) / static_cast<double>(elements) : 0.0; }
  double saturated_share() const { return elements ? static_cast<double>(saturated) / static_cast<double>(elements) : 0.0; }
  // Absent where it is undefined: nothing but zeros, or no error at all.
  std::optional<double> sqnr_db() const {
    if (sum_xx == 0 || sum_ee == 0) return std::nullopt;
    return 10.0 * std::log10(sum_xx / sum_ee);
  }
  std::optional<double> cosine() const {
    if (sum_xx == 0 || sum_qq == 0) return std::nullopt;
    return sum_xq / (std::sqrt(sum_xx) * std::sqrt(sum_qq));
  }
};

}  // namespace octet
