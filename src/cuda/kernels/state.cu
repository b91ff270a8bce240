#include "cuda/kernels/state.h"

#include "cuda/kernels/adamw.cuh"
#include "cuda/kernels/reduce.cuh"
#include "cuda/kernels/vector.cuh"
#include "cuda/launch.h"

namespace octet::cuda {
namespace {

constexpr int threads = 256;
constexpr int64_t sum_tile = 1 << 14;

template <bool halves, class Moment>
__global__ void __launch_bounds__(threads) adamw(AdamwParams p) {
  const StepControl control = *p.control;
  const int64_t c = (static_cast<int64_t>(blockIdx.x) * threads + threadIdx.x) * vector_width;
  if (!control.skip && c < p.elements) adamw_eight<halves, Moment>(p, control.grad_scale, c);
}

// One CTA. Squares are added in index order by one thread, which reads them from shared memory; counts in any order.
__global__ void __launch_bounds__(threads) decide_step(StepInputs in, StepOutcome* outcome) {
  __shared__ double chunk[threads];
  __shared__ long long counts[threads];
  double squares = 0;
  for (int64_t begin = 0; begin < in.parameters; begin += threads) {
    if (begin + threadIdx.x < in.parameters) chunk[threadIdx.x] = in.squares[begin + threadIdx.x];
    __syncthreads();
    if (threadIdx.x == 0) {
      for (int64_t i = 0; i < threads && begin + i < in.parameters; ++i) squares += chunk[i];
    }
    __syncthreads();
  }
  long long nonfinite = 0;
  for (int64_t i = threadIdx.x; i < in.sites; i += threads) nonfinite += in.nonfinite[i];
  counts[threadIdx.x] = nonfinite;
  __syncthreads();
  if (threadIdx.x != 0) return;
  nonfinite = 0;
  for (int i = 0; i < threads; ++i) nonfinite += counts[i];
  const double norm = sqrt(squares), factor = in.clip_norm > 0 ? in.clip_norm / (norm + 1e-6) : 1.0;
  outcome->nonfinite = nonfinite;
  outcome->grad_norm = norm;
  outcome->control.grad_scale = static_cast<float>(factor < 1.0 ? factor : 1.0);
  constexpr double largest = 1.7976931348623157e308;   // of a double: comparisons with it are false for NaN
  outcome->control.skip = !(fabs(*in.loss_sum) <= largest) || !(norm <= largest) || nonfinite > 0;
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

__global__ void __launch_bounds__(threads) add(const float* from, float* to, int64_t n) {
  const int64_t c = (static_cast<int64_t>(blockIdx.x) * threads + threadIdx.x) * vector_width;
  if (c >= n) return;
  const Vector<float> x = load(from, c, n);
  Vector<float> y = load(to, c, n);
#pragma unroll
  for (int i = 0; i < vector_width; ++i) y.values[i] += x.values[i];
  store(to, c, n, y);
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

// A CTA sums 32 columns: warp w takes rows w, w + 8, ...; the warps' sums are added in order. Neighbouring lanes read neighbouring columns.
template <class T>
__global__ void __launch_bounds__(threads) column_sums(const T* x, int64_t ld, int64_t rows, int64_t cols, float* sums) {
  __shared__ float of_warp[threads / 32][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t c = static_cast<int64_t>(blockIdx.x) * 32 + lane;
  float sum = 0;
  if (c < cols) {
    for (int64_t r = warp; r < rows; r += threads / 32) sum += to_float(x[r * ld + c]);
  }
  of_warp[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || c >= cols) return;
  for (int w = 1; w < threads / 32; ++w) sum += of_warp[w][lane];
  sums[c] += sum;
}

}  // namespace

void launch_adamw(cudaStream_t stream, const AdamwParams& p) {
  const unsigned blocks = blocks_for(p.elements, threads * vector_width);
  const auto with = [&](auto kernel) { launch("update weights", stream, kernel, blocks, threads, 0, p); };
  if (p.narrow_moments) {
    p.remainder ? with(adamw<true, bf16>) : with(adamw<false, bf16>);
  } else {
    p.remainder ? with(adamw<true, float>) : with(adamw<false, float>);
  }
}

void launch_decide_step(cudaStream_t stream, const StepInputs& inputs, StepOutcome* outcome) { launch("decide the step", stream, decide_step, 1, threads, 0, inputs, outcome); }

void launch_cast(cudaStream_t stream, const float* from, uint16_t* to, int64_t n) {
  launch("round weights", stream, cast, blocks_for(n, threads * vector_width), threads, 0, from, reinterpret_cast<bf16*>(to), n);
}

void launch_add(cudaStream_t stream, const float* from, float* to, int64_t n) {
  launch("add gradients", stream, add, blocks_for(n, threads * vector_width), threads, 0, from, to, n);
}

int64_t sum_tiles(int64_t n) { return (n + sum_tile - 1) / sum_tile; }

void launch_sum(cudaStream_t stream, const float* x, int64_t n, bool squares, double* partial, double* out) {
  launch("sum tiles", stream, sum_tiles_of, static_cast<unsigned>(sum_tiles(n)), threads, 0, x, n, squares, partial);
  launch("add tiles", stream, add_partials, 1, threads, 0, partial, sum_tiles(n), out);
}

void launch_column_sums(cudaStream_t stream, bool wide, const void* x, int64_t ld, int64_t rows, int64_t cols, float* sums) {
  if (wide) {
    launch("sum columns", stream, column_sums<float>, blocks_for(cols, 32), threads, 0, static_cast<const float*>(x), ld, rows, cols, sums);
  } else {
    launch("sum columns", stream, column_sums<bf16>, blocks_for(cols, 32), threads, 0, static_cast<const bf16*>(x), ld, rows, cols, sums);
  }
}

}  // namespace octet::cuda
