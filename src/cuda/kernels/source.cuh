// Sources: the elements of a matrix that is quantized, computed from what its producer reads and rounded to the compute format. See quantize.h.
#pragma once
#include "cuda/kernels/quantize.h"
#include "cuda/ptx/convert.h"
#include "cuda/ptx/memory.h"
#include "numerics/bf16.h"
#include "numerics/exp.h"

namespace octet::cuda {

__device__ __forceinline__ float low_bf16(uint32_t word) { return __uint_as_float(word << 16); }
__device__ __forceinline__ float high_bf16(uint32_t word) { return __uint_as_float(word & 0xFFFF0000u); }

__device__ __forceinline__ void unpack8(uint4 v, float (&x)[8]) {
  x[0] = low_bf16(v.x), x[1] = high_bf16(v.x), x[2] = low_bf16(v.y), x[3] = high_bf16(v.y);
  x[4] = low_bf16(v.z), x[5] = high_bf16(v.z), x[6] = low_bf16(v.w), x[7] = high_bf16(v.w);
}
__device__ __forceinline__ uint4 pack8(const float (&x)[8]) {
  return make_uint4(ptx::pack_bf16(x[0], x[1]), ptx::pack_bf16(x[2], x[3]), ptx::pack_bf16(x[4], x[5]), ptx::pack_bf16(x[6], x[7]));
}

template <class T>
__device__ __forceinline__ float element(const void* p, int64_t i) { return to_float(static_cast<const T*>(p)[i]); }

__device__ __forceinline__ float swiglu(float gate, float up) { return gate / (1.0f + fast_exp(-gate)) * up; }

struct SwigluGrad {
  float gate, up;
};
__device__ __forceinline__ SwigluGrad swiglu_grad(float dy, float gate, float up) {
  const float sigmoid = 1.0f / (1.0f + fast_exp(-gate)), silu = gate * sigmoid;
  return {dy * up * (sigmoid + silu * (1.0f - sigmoid)), dy * silu};
}

// The element (r, c), rounded to T.
template <SourceKind K, class T>
__device__ __forceinline__ float source_element(const SourceParams& s, int64_t r, int64_t c) {
  const int64_t at = r * s.ld + c;
  if constexpr (K == SourceKind::plain) {
    return element<T>(s.x, at);
  } else if constexpr (K == SourceKind::norm) {
    return to_float(from_float<T>(element<T>(s.x, at) * s.rstd[r] * element<T>(s.gamma, c)));
  } else if constexpr (K == SourceKind::swiglu) {
    return to_float(from_float<T>(swiglu(element<T>(s.x, at), element<T>(s.x, at + s.cols))));
  } else {
    const SwigluGrad d = swiglu_grad(element<T>(s.dy, r * s.cols + c), element<T>(s.x, at), element<T>(s.x, at + s.cols));
    return to_float(from_float<T>(s.part == 0 ? d.gate : d.up));
  }
}

// Eight BF16 elements from (r, c) on. ld and c are multiples of 8, pointers 16-byte aligned.
template <SourceKind K>
__device__ __forceinline__ uint4 source_eight(const SourceParams& s, int64_t r, int64_t c) {
  const bf16* x = static_cast<const bf16*>(s.x) + r * s.ld + c;
  if constexpr (K == SourceKind::plain) {
    return ptx::load_16(x);
  } else {
    float a[8], b[8];
    unpack8(ptx::load_16(x), a);
    if constexpr (K == SourceKind::norm) {
      unpack8(*reinterpret_cast<const uint4*>(static_cast<const bf16*>(s.gamma) + c), b);
      const float rstd = s.rstd[r];
#pragma unroll
      for (int i = 0; i < 8; ++i) a[i] = a[i] * rstd * b[i];
    } else {
      unpack8(ptx::load_16(x + s.cols), b);
      if constexpr (K == SourceKind::swiglu) {
#pragma unroll
        for (int i = 0; i < 8; ++i) a[i] = swiglu(a[i], b[i]);
      } else {
        float d[8];
        unpack8(ptx::load_16(static_cast<const bf16*>(s.dy) + r * s.cols + c), d);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const SwigluGrad g = swiglu_grad(d[i], a[i], b[i]);
          a[i] = s.part == 0 ? g.gate : g.up;
        }
      }
    }
    return pack8(a);
  }
}

}  // namespace octet::cuda
