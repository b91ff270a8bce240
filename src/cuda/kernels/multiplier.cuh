// What a block is multiplied by, by its spec's rule (numerics/scale.h): the one place on the device.
#pragma once
#include "cuda/kernels/quantize.h"
#include "numerics/scale.h"

namespace octet::cuda {

struct Multiplier {
  float scale, inverse;
};

// amax: of the block; tensor_amax: of the whole matrix, for two-level scales only.
__device__ __forceinline__ Multiplier multiplier_of(const ScaleParams& p, float amax, float tensor_amax = 0.0f) {
  const float max = format_info(p.format).max_finite, bounded = amax < p.epsilon ? p.epsilon : amax;
  if (p.rule == ScaleRule::e8m0) {
    const uint8_t code = mx_scale_code(bounded, p.format);
    return {e8m0_reciprocal(code), e8m0_decode(code)};
  }
  if (p.rule == ScaleRule::two_level) {
    const float tensor_scale = two_level_tensor_scale(tensor_amax, max, p.epsilon);
    const uint8_t code = two_level_block_code(bounded, max, tensor_scale);
    return {two_level_multiplier(code, tensor_scale), two_level_scale_inv(code, tensor_scale)};
  }
  const float scale = p.stored ? *p.stored : scale_from_amax(amax, max, p.pow2, p.epsilon, p.overflow_scale, p.fp64_divide);
  return {scale, inverse_scale(scale)};
}

}  // namespace octet::cuda
