// Kernels over parameters and scalars: AdamW, sums in a fixed order, column sums, copies. Pointers are device memory.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>
#include <span>

#include "core/step_key.h"
#include "numerics/adamw.h"
#include "numerics/element_numbers.h"
#include "ops/step_control.h"

namespace octet::cuda {

struct AdamwParams {
  float* master;         // or null, and
  uint16_t* remainder;   // the lower halves of masters whose upper ones are `working`
  void *m, *v;           // float, or bf16 when narrow_moments
  const float* grad;
  uint16_t* working;     // bf16 or null
  int64_t elements;
  ElementNumbers numbers;   // read by narrow moments only, as the next three and key
  bool narrow_moments;
  uint64_t seed, name_hash;
  const StepKey* key;
  AdamwStep step;
  const StepControl* control;
};
// Tensors without elements are passed over. Seed, key, control and step are the first one's, but for the weight decay. A launch for each of the four forms of states there
// are among them, and for each 45 tensors of one: their table is an argument of the kernel, so that nothing is copied and a recording keeps it.
void launch_adamw(cudaStream_t stream, std::span<const AdamwParams> tensors);
inline void launch_adamw(cudaStream_t stream, const AdamwParams& p) { launch_adamw(stream, std::span(&p, 1)); }
void launch_decide_step(cudaStream_t stream, const StepInputs& inputs, StepOutcome* outcome);
// to += from.
void launch_add(cudaStream_t stream, const float* from, float* to, int64_t n);
void launch_narrow_scales(cudaStream_t stream, const float* scale_inv, uint8_t* codes, int64_t n);
void launch_widen_scales(cudaStream_t stream, const uint8_t* codes, float* scale_inv, int64_t n);
void launch_cast(cudaStream_t stream, const float* from, uint16_t* to, int64_t n);

// out[i] += sum of tensor i, or of its squares: tiles of fixed size in double, then the tiles in order, as if it were alone. The table is an argument of both kernels.
int64_t sum_tiles(int64_t n);
struct SumTable {
  static constexpr int most = 160;
  const float* x[most];
  int64_t elements[most];
  int64_t first_tile[most];   // in the sequence of all their tiles
  int count = 0;
  int64_t tiles = 0;
  void add(const float* data, int64_t n) {
    x[count] = data;
    elements[count] = n;
    first_tile[count++] = tiles;
    tiles += sum_tiles(n);
  }
};
// partial: [t.tiles] doubles of scratch.
void launch_sums(cudaStream_t stream, const SumTable& t, bool squares, double* partial, double* out);

// sums[c] += sum of column c, in a fixed order. x: [rows, cols], rows `ld` elements apart.
void launch_column_sums(cudaStream_t stream, bool wide, const void* x, int64_t ld, int64_t rows, int64_t cols, float* sums);

}  // namespace octet::cuda
