// Kernels over parameters and scalars: AdamW, sums in a fixed order, column sums, copies. Pointers are device memory.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "core/step_key.h"
#include "numerics/adamw.h"
#include "ops/step_control.h"

namespace octet::cuda {

struct AdamwParams {
  float* master;         // or null, and
  uint16_t* remainder;   // the lower halves of masters whose upper ones are `working`
  void *m, *v;           // float, or bf16 when narrow_moments
  const float* grad;
  uint16_t* working;     // bf16 or null
  int64_t elements, first_element;
  bool narrow_moments;
  uint64_t seed, name_hash;
  const StepKey* key;    // read by narrow moments only
  AdamwStep step;
  const StepControl* control;
};
void launch_adamw(cudaStream_t stream, const AdamwParams& p);
void launch_decide_step(cudaStream_t stream, const StepInputs& inputs, StepOutcome* outcome);
// to += from.
void launch_add(cudaStream_t stream, const float* from, float* to, int64_t n);
void launch_cast(cudaStream_t stream, const float* from, uint16_t* to, int64_t n);

// *out += sum of x, or of its squares: tiles of fixed size in double, then the tiles in order. partial: [sum_tiles(n)] doubles of scratch.
int64_t sum_tiles(int64_t n);
void launch_sum(cudaStream_t stream, const float* x, int64_t n, bool squares, double* partial, double* out);

// sums[c] += sum of column c, in a fixed order. x: [rows, cols], rows `ld` elements apart.
void launch_column_sums(cudaStream_t stream, bool wide, const void* x, int64_t ld, int64_t rows, int64_t cols, float* sums);

}  // namespace octet::cuda
