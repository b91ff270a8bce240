#include "cuda/kernels/state.h"

#include "cuda/kernels/adamw.cuh"
#include "cuda/kernels/reduce.cuh"
#include "cuda/kernels/vector.cuh"
#include "cuda/launch.h"
#include "numerics/formats.h"

namespace octet::cuda {
namespace {

constexpr int threads = 256;
constexpr int64_t sum_tile = 1 << 14;

constexpr size_t most_argument_bytes = 4096;   // of a kernel, on every GPU and driver

// A tensor in the table of a launch; the other members of AdamwParams are the same for all.
struct AdamwEntry {
  void* master;   // f32, or the lower halves
  void *m, *v;
  const float* grad;
  uint16_t* working;
  int64_t elements;
  ElementNumbers numbers;
  uint64_t name_hash;
  float weight_decay;
  unsigned first_block;   // of the grid's, which are dealt in the order of the table: of 2048 elements each, whatever the tensor's size
};

struct AdamwTable {
  AdamwStep step;
  uint64_t seed;
  const StepKey* key;
  const StepControl* control;
  int count;
  static constexpr int most = 45;
  AdamwEntry tensors[most];
};
static_assert(sizeof(AdamwTable) <= most_argument_bytes && sizeof(SumTable) + 3 * sizeof(void*) <= most_argument_bytes);

// The last of `count` ascending numbers that is not above `value`; the first of them is not.
template <class At>
__device__ __forceinline__ int last_not_above(int count, int64_t value, const At& at) {
  int low = 0, high = count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (static_cast<int64_t>(at(middle)) <= value ? low : high) = middle;
  }
  return low;
}

template <bool halves, class Moment>
__global__ void __launch_bounds__(threads) adamw(const __grid_constant__ AdamwTable table) {
  const StepControl control = *table.control;
  if (control.skip) return;
  const AdamwEntry& t = table.tensors[last_not_above(table.count, blockIdx.x, [&](int i) { return table.tensors[i].first_block; })];
  AdamwParams p{};
  if constexpr (halves) {
    p.remainder = static_cast<uint16_t*>(t.master);
  } else {
    p.master = static_cast<float*>(t.master);
  }
  p.m = t.m;
  p.v = t.v;
  p.grad = t.grad;
  p.working = t.working;
  p.elements = t.elements;
  p.numbers = t.numbers;
  p.seed = table.seed;
  p.name_hash = t.name_hash;
  p.key = table.key;
  p.step = table.step;
  p.step.weight_decay = t.weight_decay;
  const int64_t c = (static_cast<int64_t>(blockIdx.x - t.first_block) * threads + threadIdx.x) * vector_width;
  if (c < p.elements) adamw_eight<halves, Moment>(p, control.grad_scale, c);
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

__global__ void __launch_bounds__(threads) sum_tiles_of(const __grid_constant__ SumTable table, bool squares, double* partial) {
  // One without elements has the first tile of the next, which is taken.
  const int t = last_not_above(table.count, blockIdx.x, [&](int i) { return table.first_tile[i]; });
  const float* x = table.x[t];
  const int64_t n = table.elements[t], begin = (blockIdx.x - table.first_tile[t]) * sum_tile, end = begin + sum_tile < n ? begin + sum_tile : n;
  double sum = 0;
  for (int64_t i = begin + threadIdx.x; i < end; i += threads) {
    const double v = x[i];
    sum += squares ? v * v : v;
  }
  sum = block_sum<threads>(sum);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

// One CTA a tensor: thread t adds a contiguous share of its tiles, then the shares are added in order.
__global__ void __launch_bounds__(threads) add_partials(const __grid_constant__ SumTable table, const double* all, double* outs) {
  __shared__ double shares[threads];
  const int at = static_cast<int>(blockIdx.x);
  const double* partial = all + table.first_tile[at];
  double* out = outs + at;
  const int64_t tiles = (at + 1 < table.count ? table.first_tile[at + 1] : table.tiles) - table.first_tile[at];
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

__global__ void __launch_bounds__(threads) narrow_scales(const float* scale_inv, uint8_t* codes, int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * threads + threadIdx.x;
  if (i < n) codes[i] = e8m0_encode_rz(scale_inv[i]);
}

__global__ void __launch_bounds__(threads) widen_scales(const uint8_t* codes, float* scale_inv, int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * threads + threadIdx.x;
  if (i < n) scale_inv[i] = e8m0_decode(codes[i]);
}

}  // namespace

// Those of one form.
template <bool halves, class Moment>
static void launch_adamw_of(cudaStream_t stream, std::span<const AdamwParams> tensors) {
  AdamwTable table{};
  unsigned blocks = 0;
  const auto flush = [&] {
    if (table.count > 0) launch("update weights", stream, adamw<halves, Moment>, blocks, threads, 0, table);
    table.count = 0;
    blocks = 0;
  };
  for (const AdamwParams& p : tensors) {
    if (p.elements == 0 || (p.remainder != nullptr) != halves || p.narrow_moments != (sizeof(Moment) == 2)) continue;
    if (table.count == AdamwTable::most) flush();
    table.step = p.step;
    table.seed = p.seed;
    table.key = p.key;
    table.control = p.control;
    table.tensors[table.count++] = {halves ? static_cast<void*>(p.remainder) : p.master, p.m, p.v, p.grad, p.working, p.elements, p.numbers, p.name_hash, p.step.weight_decay, blocks};
    blocks += blocks_for(p.elements, threads * vector_width);
  }
  flush();
}

void launch_adamw(cudaStream_t stream, std::span<const AdamwParams> tensors) {
  launch_adamw_of<false, float>(stream, tensors);
  launch_adamw_of<true, float>(stream, tensors);
  launch_adamw_of<false, bf16>(stream, tensors);
  launch_adamw_of<true, bf16>(stream, tensors);
}

void launch_decide_step(cudaStream_t stream, const StepInputs& inputs, StepOutcome* outcome) { launch("decide the step", stream, decide_step, 1, threads, 0, inputs, outcome); }

void launch_cast(cudaStream_t stream, const float* from, uint16_t* to, int64_t n) {
  launch("round weights", stream, cast, blocks_for(n, threads * vector_width), threads, 0, from, reinterpret_cast<bf16*>(to), n);
}

void launch_add(cudaStream_t stream, const float* from, float* to, int64_t n) {
  launch("add gradients", stream, add, blocks_for(n, threads * vector_width), threads, 0, from, to, n);
}

void launch_narrow_scales(cudaStream_t stream, const float* scale_inv, uint8_t* codes, int64_t n) {
  launch("narrow scales", stream, narrow_scales, blocks_for(n, threads), threads, 0, scale_inv, codes, n);
}

void launch_widen_scales(cudaStream_t stream, const uint8_t* codes, float* scale_inv, int64_t n) {
  launch("widen scales", stream, widen_scales, blocks_for(n, threads), threads, 0, codes, scale_inv, n);
}

int64_t sum_tiles(int64_t n) { return (n + sum_tile - 1) / sum_tile; }

void launch_sums(cudaStream_t stream, const SumTable& t, bool squares, double* partial, double* out) {
  if (t.tiles == 0) return;
  launch("sum tiles", stream, sum_tiles_of, static_cast<unsigned>(t.tiles), threads, 0, t, squares, partial);
  launch("add tiles", stream, add_partials, static_cast<unsigned>(t.count), threads, 0, t, partial, out);
}

void launch_column_sums(cudaStream_t stream, bool wide, const void* x, int64_t ld, int64_t rows, int64_t cols, float* sums) {
  if (wide) {
    launch("sum columns", stream, column_sums<float>, blocks_for(cols, 32), threads, 0, static_cast<const float*>(x), ld, rows, cols, sums);
  } else {
    launch("sum columns", stream, column_sums<bf16>, blocks_for(cols, 32), threads, 0, static_cast<const bf16*>(x), ld, rows, cols, sums);
  }
}

}  // namespace octet::cuda
