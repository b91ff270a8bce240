#include "cuda/kernels/state.h"

#include "cuda/kernels/reduce.cuh"
#include "cuda/kernels/vector.cuh"
#include "cuda/launch.h"

namespace octet::cuda {
namespace {

constexpr int threads = 256;
constexpr int64_t sum_tile = 1 << 14;

__global__ void __launch_bounds__(threads) adamw(float* master, float* m, float* v, const float* grad, bf16* working, int64_t n, AdamwStep step) {
  const int64_t c = (static_cast<int64_t>(blockIdx.x) * threads + threadIdx.x) * vector_width;
  if (c >= n) return;
  Vector<float> w = load(static_cast<const float*>(master), c, n), first = load(static_cast<const float*>(m), c, n), second = load(static_cast<const float*>(v), c, n);
  const Vector<float> g = load(grad, c, n);
#pragma unroll
  for (int i = 0; i < vector_width; ++i) adamw_element(w.values[i], first.values[i], second.values[i], g.values[i], step);
  store(master, c, n, w);
  store(m, c, n, first);
  store(v, c, n, second);
  if (!working) return;
  Vector<bf16> copy{};
#pragma unroll
  for (int i = 0; i < vector_width; ++i) copy.set(i, w.values[i]);
  store(working, c, n, copy);
}

__global__ void __launch_bounds__(threads) cast(const float* from, bf16* to, int64_t n) {
  const int64_t c = (static_cast<int64_t>(blockIdx.x) * threads + threadIdx.x) * vector_width;
  if (c >= n) return;
  const Vector<float> w = load(from, c, n);
  Vector<bf16> copy{};
#pragma unroll
  for (int i = 0; i < vector_width; ++i) copy.set(i, w.values[i]);
  store(to, c, n, copy);
}

__global__ void __launch_bounds__(threads) sum_tiles_of(const float* x, int64_t n, bool squares, double* partial) {
  const int64_t begin = blockIdx.x * sum_tile, end = begin + sum_tile < n ? begin + sum_tile : n;
  double sum = 0;
  for (int64_t i = begin + threadIdx.x; i < end; i += threads) {
    const double v = x[i];
    sum += squares ? v * v : v;
  }
  sum = block_sum<threads>(sum);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

// One CTA: thread t adds a contiguous share of the tiles, then the shares are added in order.
__global__ void __launch_bounds__(threads) add_partials(const double* partial, int64_t tiles, double* out) {
  __shared__ double shares[threads];
  const int64_t each = (tiles + threads - 1) / threads, begin = threadIdx.x * each;
  double sum = 0;
  for (int64_t i = begin; i < begin + each && i < tiles; ++i) sum += partial[i];
  shares[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  double total = *out;
  for (int i = 0; i < threads; ++i) total += shares[i];
  *out = total;
}

template <class T>
__global__ void __launch_bounds__(threads) column_sums(const T* x, int64_t ld, int64_t rows, int64_t cols, float* sums) {
  const int64_t c = static_cast<int64_t>(blockIdx.x) * threads + threadIdx.x;
  if (c >= cols) return;
  float sum = 0;
  for (int64_t r = 0; r < rows; ++r) sum += to_float(x[r * ld + c]);
  sums[c] += sum;
}

}  // namespace

void launch_adamw(cudaStream_t stream, float* master, float* m, float* v, const float* grad, uint16_t* working, int64_t n, const AdamwStep& step) {
  launch("update weights", stream, adamw, blocks_for(n, threads * vector_width), threads, 0, master, m, v, grad, reinterpret_cast<bf16*>(working), n, step);
}

void launch_cast(cudaStream_t stream, const float* from, uint16_t* to, int64_t n) {
  launch("round weights", stream, cast, blocks_for(n, threads * vector_width), threads, 0, from, reinterpret_cast<bf16*>(to), n);
}

int64_t sum_tiles(int64_t n) { return (n + sum_tile - 1) / sum_tile; }

void launch_sum(cudaStream_t stream, const float* x, int64_t n, bool squares, double* partial, double* out) {
  launch("sum tiles", stream, sum_tiles_of, static_cast<unsigned>(sum_tiles(n)), threads, 0, x, n, squares, partial);
  launch("add tiles", stream, add_partials, 1, threads, 0, partial, sum_tiles(n), out);
}

void launch_column_sums(cudaStream_t stream, bool wide, const void* x, int64_t ld, int64_t rows, int64_t cols, float* sums) {
  if (wide) {
    launch("sum columns", stream, column_sums<float>, blocks_for(cols, threads), threads, 0, static_cast<const float*>(x), ld, rows, cols, sums);
  } else {
    launch("sum columns", stream, column_sums<bf16>, blocks_for(cols, threads), threads, 0, static_cast<const bf16*>(x), ld, rows, cols, sums);
  }
}

}  // namespace octet::cuda
