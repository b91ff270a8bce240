// Plain data that kernels share, hence a header of its own.
#pragma once
#include <cstdint>

namespace octet {

// Where in a run an operator works: with Ctx::seed and a tensor's name the key of its random numbers (core/philox.h). It lies in the memory of the device, so
// that work which was recorded once can be done again for another step (cuda/device.h).
struct StepKey {
  uint64_t step = 0;       // optimizer step
  int64_t first_row = 0;   // number of the micro-batch's first token in the global batch, 0 for weights: the same random numbers for any split
};

}  // namespace octet
