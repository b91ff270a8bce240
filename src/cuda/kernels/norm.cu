// RMSNorm. Forward: one CTA a row; what follows it (values, images) reads the stored sum and rstd, or y directly when no image is wanted.
// Backward: one CTA a tile of 16 rows, so that the gradient of gamma is summed in the CPU backend's order.
#include "cuda/kernels/reduce.cuh"
#include "cuda/kernels/rows.h"
#include "cuda/kernels/vector.cuh"
#include "cuda/launch.h"

namespace octet::cuda {
namespace {

constexpr int threads = 256, tile_rows = 16;

template <class T>
__global__ void __launch_bounds__(threads) norm_forward(NormForward p) {
  const int64_t row = blockIdx.x, at = row * p.cols;
  const T *x = static_cast<const T*>(p.x) + at, *delta = static_cast<const T*>(p.delta) + (p.delta ? at : 0), *gamma = static_cast<const T*>(p.gamma);
  T *sum = static_cast<T*>(p.sum) + (p.sum ? at : 0), *y = static_cast<T*>(p.y) + (p.y ? at : 0);
  float squares = 0;
  for (int64_t c = threadIdx.x * vector_width; c < p.cols; c += threads * vector_width) {
    Vector<T> s = load(x, c, p.cols);
    if (p.delta) {
      const Vector<T> d = load(delta, c, p.cols);
#pragma unroll
      for (int i = 0; i < vector_width; ++i) s.set(i, s.at(i) + d.at(i));
      store(sum, c, p.cols, s);
    }
#pragma unroll
    for (int i = 0; i < vector_width; ++i) squares = fmaf(s.at(i), s.at(i), squares);   // elements beyond the end are 0
  }
  const float rstd = 1.0f / sqrtf(block_sum<threads>(squares) / static_cast<float>(p.cols) + p.eps);
  if (p.rstd && threadIdx.x == 0) p.rstd[row] = rstd;
  if (!p.y) return;
  const T* from = p.delta ? sum : x;   // each thread reads what it wrote itself
  for (int64_t c = threadIdx.x * vector_width; c < p.cols; c += threads * vector_width) {
    Vector<T> s = load(from, c, p.cols);
    const Vector<T> g = load(gamma, c, p.cols);
#pragma unroll
    for (int i = 0; i < vector_width; ++i) s.set(i, s.at(i) * rstd * g.at(i));
    store(y, c, p.cols, s);
  }
}

template <class T>
__global__ void __launch_bounds__(threads) norm_backward(NormBackward p) {
  const T* gamma = static_cast<const T*>(p.gamma);
  float* dgamma = p.partial + blockIdx.x * p.cols;   // a thread's own columns
  const int64_t first = static_cast<int64_t>(blockIdx.x) * tile_rows, last = first + tile_rows < p.rows ? first + tile_rows : p.rows;
  for (int64_t row = first; row < last; ++row) {
    const int64_t at = row * p.cols;
    const T *dy = static_cast<const T*>(p.dy) + at, *s = static_cast<const T*>(p.s) + at, *residual = static_cast<const T*>(p.d_residual) + (p.d_residual ? at : 0);
    T* dx = static_cast<T*>(p.dx) + at;
    const float rstd = p.rstd[row];
    float dot = 0;
    for (int64_t c = threadIdx.x * vector_width; c < p.cols; c += threads * vector_width) {
      const Vector<T> d = load(dy, c, p.cols), g = load(gamma, c, p.cols), v = load(s, c, p.cols);
#pragma unroll
      for (int i = 0; i < vector_width; ++i) {
        if (c + i >= p.cols) continue;
        dot = fmaf(d.at(i) * g.at(i), v.at(i), dot);
        const float term = d.at(i) * (v.at(i) * rstd);
        dgamma[c + i] = row == first ? term : dgamma[c + i] + term;
      }
    }
    // d/ds of s * rstd: rstd * (u - s * rstd^2 * mean(u s)), u = dy * gamma
    const float factor = block_sum<threads>(dot) / static_cast<float>(p.cols) * rstd * rstd;
    for (int64_t c = threadIdx.x * vector_width; c < p.cols; c += threads * vector_width) {
      Vector<T> d = load(dy, c, p.cols);
      const Vector<T> g = load(gamma, c, p.cols), v = load(s, c, p.cols);
      Vector<T> r{};
      if (p.d_residual) r = load(residual, c, p.cols);
#pragma unroll
      for (int i = 0; i < vector_width; ++i) {
        const float u = rstd * (d.at(i) * g.at(i) - v.at(i) * factor);
        d.set(i, p.d_residual ? u + r.at(i) : u);
      }
      store(dx, c, p.cols, d);
    }
  }
}

__global__ void __launch_bounds__(threads) add_tiles(const float* partial, int64_t tiles, int64_t cols, float* total) {
  const int64_t c = static_cast<int64_t>(blockIdx.x) * threads + threadIdx.x;
  if (c >= cols) return;
  float sum = total[c];
  for (int64_t t = 0; t < tiles; ++t) sum += partial[t * cols + c];
  total[c] = sum;
}

}  // namespace

void launch_norm_forward(cudaStream_t stream, const NormForward& p) {
  launch("normalize", stream, p.wide ? norm_forward<float> : norm_forward<bf16>, static_cast<unsigned>(p.rows), threads, 0, p);
}

int64_t norm_backward_tiles(int64_t rows) { return (rows + tile_rows - 1) / tile_rows; }

void launch_norm_backward(cudaStream_t stream, const NormBackward& p) {
  const int64_t tiles = norm_backward_tiles(p.rows);
  launch("gradient of the norm", stream, p.wide ? norm_backward<float> : norm_backward<bf16>, static_cast<unsigned>(tiles), threads, 0, p);
  launch("gradient of gamma", stream, add_tiles, blocks_for(p.cols, threads), threads, 0, p.partial, tiles, p.cols, p.dgamma);
}

}  // namespace octet::cuda
