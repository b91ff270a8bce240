#include "optim/schedule.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"

namespace octet {

double learning_rate(const SchedConfig& sched, double peak_lr, int64_t step, int64_t total_steps) {
  if (step < sched.warmup_steps) return peak_lr * static_cast<double>(step + 1) / static_cast<double>(sched.warmup_steps);
  if (sched.type == "constant") return peak_lr;
  OCTET_CHECK(sched.decay_steps.has_value(), "decay_steps of schedule {} was not resolved", sched.type);
  const int64_t decay = *sched.decay_steps, begin = total_steps - decay;
  if (step < begin || decay == 0) return peak_lr;
  const double p = std::min(1.0, static_cast<double>(step - begin) / static_cast<double>(decay));
  double shape = 0;
  if (sched.type == "linear") {
    shape = 1.0 - p;
  } else if (sched.type == "cosine") {
    shape = 0.5 * (1.0 + std::cos(3.14159265358979323846 * p));
  } else if (sched.type == "wsd") {
    shape = 1.0 - std::sqrt(p);
  } else {
    OCTET_CHECK(false, "unknown schedule {}", sched.type);
  }
  return peak_lr * (sched.min_lr_ratio + (1.0 - sched.min_lr_ratio) * shape);
}

}  // namespace octet
