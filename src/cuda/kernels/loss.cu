// Softmax cross-entropy with z-loss, forward and gradient: one CTA a row, the row read twice (maximum and sum together, then the gradient). Of a vocabulary on
// several ranks each of the two readings is a kernel, with the exchange of the ranks' parts between them.
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

// Maximum of a row's first n elements, -Inf without any, and the sum of exp(x - maximum), to which -Inf adds nothing; all threads get both. A thread that has seen no
// number yet keeps the NaN that it has seen.
struct RowParts {
  float shift, total;
};
template <class T>
__device__ __forceinline__ RowParts row_parts(const T* x, int64_t n) {
  float largest = minus_infinity(), sum = 0.0f;
  for (int64_t c = threadIdx.x * vector_width; c < n; c += threads * vector_width) {
    const Vector<T> v = load(x, c, n);
    float here = largest;
#pragma unroll
    for (int i = 0; i < vector_width; ++i) here = c + i < n && v.at(i) > here ? v.at(i) : here;
    if (here > largest) {
      if (largest != minus_infinity()) sum *= fast_exp(largest - here);
      largest = here;
    }
#pragma unroll
    for (int i = 0; i < vector_width; ++i) sum += c + i < n && v.at(i) != minus_infinity() ? fast_exp(v.at(i) - largest) : 0.0f;
  }
  const float shift = block_max<threads>(largest);
  return {shift, block_sum<threads>(sum * fast_exp(largest - (shift == minus_infinity() ? 0.0f : shift)))};
}

// Without a label: no loss, zero gradient.
template <class T>
__device__ __forceinline__ bool ignored(T* x, const CrossEntropy& p, int64_t row, int32_t label) {
  if (label >= 0) return false;
  if (threadIdx.x == 0) p.loss[row] = p.z[row] = 0.0f;
  if (p.grad_scale) write_gradient(x, p, 0.0f, 0.0f, -1, 0.0f);
  return true;
}

template <class T>
__global__ void __launch_bounds__(threads) cross_entropy(CrossEntropy p) {
  const int64_t row = blockIdx.x;
  T* x = static_cast<T*>(p.logits) + row * p.width;
  const int32_t label = p.labels[row];
  if (ignored(x, p, row, label)) return;
  const auto [shift, total] = row_parts(static_cast<const T*>(x), p.vocab);
  const float lse = shift + logf(total);
  if (threadIdx.x == 0) {
    p.loss[row] = lse - to_float(x[label]);
    p.z[row] = p.z_coefficient * lse * lse;
  }
  if (!p.grad_scale) return;
  __syncthreads();   // x[label] was read
  const float grad_scale = *p.grad_scale;
  write_gradient(x, p, shift, grad_scale * (1.0f + 2.0f * p.z_coefficient * lse) / total, label, grad_scale);
}

// The label's column among those of this rank, or -1.
__device__ __forceinline__ int64_t column_of(int32_t label, int64_t first, int64_t columns) {
  const int64_t at = label - first;
  return label >= 0 && at >= 0 && at < columns ? at : -1;
}

template <class T>
__global__ void __launch_bounds__(threads) softmax_parts(SoftmaxParts p) {
  const int64_t row = blockIdx.x;
  const T* x = static_cast<const T*>(p.logits) + row * p.width;
  const RowParts r = row_parts(x, p.columns);
  if (threadIdx.x != 0) return;
  const int64_t label = column_of(p.labels[row], p.first, p.columns);
  p.parts[3 * row] = r.shift;
  p.parts[3 * row + 1] = r.total;
  p.parts[3 * row + 2] = label >= 0 ? to_float(x[label]) : 0.0f;
}

// Every thread merges the parts of its row: there are few.
template <class T>
__global__ void __launch_bounds__(threads) cross_entropy_of_parts(CrossEntropy p) {
  const int64_t row = blockIdx.x;
  T* x = static_cast<T*>(p.logits) + row * p.width;
  const int32_t label = p.labels[row];
  if (ignored(x, p, row, label)) return;
  const float* part = p.parts + 3 * row;
  const int64_t stride = 3 * p.rows;
  float shift = part[0], total = 0.0f, of_label = 0.0f;
  for (int64_t s = 1; s < p.shards; ++s) shift = shift < part[s * stride] ? part[s * stride] : shift;
  for (int64_t s = 0; s < p.shards; ++s) {
    total += part[s * stride + 1] * fast_exp(part[s * stride] - shift);
    of_label += part[s * stride + 2];
  }
  const float lse = shift + logf(total);
  if (threadIdx.x == 0) {
    p.loss[row] = lse - of_label;
    p.z[row] = p.z_coefficient * lse * lse;
  }
  if (!p.grad_scale) return;
  const float grad_scale = *p.grad_scale;
  write_gradient(x, p, shift, grad_scale * (1.0f + 2.0f * p.z_coefficient * lse) / total, column_of(label, p.first, p.vocab), grad_scale);
}

}  // namespace

void launch_softmax_parts(cudaStream_t stream, const SoftmaxParts& p) {
  launch("parts of the softmax", stream, p.wide ? softmax_parts<float> : softmax_parts<bf16>, static_cast<unsigned>(p.rows), threads, 0, p);
}

void launch_cross_entropy(cudaStream_t stream, const CrossEntropy& p) {
  if (p.parts) {
    launch("cross-entropy of parts", stream, p.wide ? cross_entropy_of_parts<float> : cross_entropy_of_parts<bf16>, static_cast<unsigned>(p.rows), threads, 0, p);
    return;
  }
  launch("cross-entropy", stream, p.wide ? cross_entropy<float> : cross_entropy<bf16>, static_cast<unsigned>(p.rows), threads, 0, p);
}

}  // namespace octet::cuda
