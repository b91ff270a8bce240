// Learning-rate schedules: a pure function of the step number, so a resumed run needs no state.
//
// Steps are numbered s = 0 .. N-1; W = warmup_steps, D = decay_steps (the last D steps), r = min_lr_ratio.
//   s <  W       lr * (s + 1) / W                                   the last warm-up step has the full rate
//   W <= s < N-D lr
//   s >= N-D     lr * (r + (1 - r) * shape(p)),  p = (s - (N - D)) / D
//       linear   shape = 1 - p
//       cosine   shape = (1 + cos(pi p)) / 2
//       wsd      shape = 1 - sqrt(p)          (Haegele et al., arXiv 2405.18392)
//   constant     never decays
// As torchtitan counts: p = 1 would be one virtual step after the last, so the last real step is not at the minimum.
// D defaults to N - W for linear and cosine, to N / 10 for wsd (resolved in config/validate.cpp). W = 0 and D = 0 are legal.
// docs/reference/schedules.md publishes a table of values; tests/unit/optim checks it.
#pragma once
#include <cstdint>

#include "config/run_config.h"

namespace octet {

double learning_rate(const SchedConfig& sched, double peak_lr, int64_t step, int64_t total_steps);

}  // namespace octet
