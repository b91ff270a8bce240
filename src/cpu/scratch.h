// Per-worker scratch rows from the context's arena: counted while planning, never allocated in the step.
#pragma once
#include "core/context.h"

namespace octet::cpu {

class WorkerScratch {
 public:
  WorkerScratch(Ctx& ctx, int64_t floats_per_worker)
      : stride_((floats_per_worker + 15) / 16 * 16), base_(ctx.scratch().alloc_array<float>(stride_ * ctx.pool().threads())) {}
  float* of(int worker) const { return base_ + stride_ * worker; }

 private:
  int64_t stride_;
  float* base_;
};

}  // namespace octet::cpu
