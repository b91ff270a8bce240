// The decision whether a step's update is applied, as plain data that kernels share (ops/optimizer.h has the operators).
#pragma once
#include <cstdint>

namespace octet {

// What the step's gradients decide about its update (ops::decide_step). In the memory of the device: the host does not wait for it.
struct StepControl {
  float grad_scale;   // clip factor
  int32_t skip;       // not 0: the optimizer changes nothing
};

// Device memory.
struct StepInputs {
  const double* loss_sum = nullptr;
  const double* squares = nullptr;      // [parameters] sums of squared gradients
  int64_t parameters = 0;
  const int64_t* nonfinite = nullptr;   // [sites] elements that were NaN or Inf when they were quantized; null when sites is 0
  int64_t sites = 0;
  double clip_norm = 0;
};

struct StepOutcome {
  StepControl control;
  double grad_norm;     // sqrt of the sum of squares in index order; NaN or Inf when one is
  int64_t nonfinite;    // sum over sites
};

}  // namespace octet
