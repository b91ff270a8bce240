// Softmax cross-entropy with z-loss, forward and gradient: one CTA a row, the row read twice (maximum and sum together, then the gradient).
#include "cuda/kernels/reduce.cuh"
#include "cuda/kernels/rows.h"
#include "cuda/kernels/vector.cuh"
#include "cuda/launch.h"
#include "numerics/exp.h"

namespace octet::cuda {
namespace {

constexpr int threads = 512;

__device__ __forceinline__ float minus_infinity() { return __uint_as_float(0xFF800000u); }

template <class T>
__device__ __forceinline__ void write_gradient(T* x, const CrossEntropy& p, float shift, float factor, int64_t label, float grad_scale) {
  for (int64_t c = threadIdx.x * vector_width; c < p.width; c += threads * vector_width) {
    Vector<T> v = load(static_cast<const T*>(x), c, p.width);
#pragma unroll
    for (int i = 0; i < vector_width; ++i) {
      float g = 0.0f;
      if (factor != 0.0f && c + i < p.vocab) g = fast_exp(v.at(i) - shift) * factor;
      if (c + i == label) g -= grad_scale;
      v.set(i, g);
    }
    store(x, c, p.width, v);
  }
}

template <class T>
__global__ void __launch_bounds__(threads) cross_entropy(CrossEntropy p) {
  const int64_t row = blockIdx.x;
  T* x = static_cast<T*>(p.logits) + row * p.width;
  const int32_t label = p.labels[row];
  if (label < 0) {
    if (threadIdx.x == 0) p.loss[row] = p.z[row] = 0.0f;
    if (p.grad_scale) write_gradient(x, p, 0.0f, 0.0f, -1, 0.0f);
    return;
  }
  float largest = minus_infinity(), sum = 0.0f;
  for (int64_t c = threadIdx.x * vector_width; c < p.vocab; c += threads * vector_width) {
    const Vector<T> v = load(static_cast<const T*>(x), c, p.vocab);
    float here = largest;
#pragma unroll
    for (int i = 0; i < vector_width; ++i) here = c + i < p.vocab && v.at(i) > here ? v.at(i) : here;
    if (here > largest) {
      sum = largest == minus_infinity() ? 0.0f : sum * fast_exp(largest - here);
      largest = here;
    }
#pragma unroll
    for (int i = 0; i < vector_width; ++i) sum += c + i < p.vocab ? fast_exp(v.at(i) - largest) : 0.0f;   // NaN - -Inf is NaN: it stays in the sum
  }
  const float shift = block_max<threads>(largest);
  const float total = block_sum<threads>(sum * fast_exp(largest - shift)), lse = shift + logf(total);
  if (threadIdx.x == 0) {
    p.loss[row] = lse - to_float(x[label]);
    p.z[row] = p.z_coefficient * lse * lse;
  }
  if (!p.grad_scale) return;
  __syncthreads();   // x[label] was read
  const float grad_scale = *p.grad_scale;
  write_gradient(x, p, shift, grad_scale * (1.0f + 2.0f * p.z_coefficient * lse) / total, label, grad_scale);
}

}  // namespace

void launch_cross_entropy(cudaStream_t stream, const CrossEntropy& p) {
  launch("cross-entropy", stream, p.wide ? cross_entropy<float> : cross_entropy<bf16>, static_cast<unsigned>(p.rows), threads, 0, p);
}

}  // namespace octet::cuda
