// The general family (quantize.h): any block shape, format, scale rule and rounding, statistics. Three passes: maxima of blocks, scales, codes.
#include "cuda/kernels/quantize.h"
#include "cuda/kernels/multiplier.cuh"
#include "cuda/kernels/philox.cuh"
#include "cuda/kernels/reduce.cuh"
#include "cuda/kernels/source.cuh"
#include "cuda/launch.h"
#include "numerics/hadamard.h"

namespace octet::cuda {
namespace {

constexpr int side = 32, rows_a_thread = 4, threads = side * side / rows_a_thread;   // a CTA serves 32 x 32 elements
constexpr uint32_t inf_bits = 0x7F800000u;

// Blocks of the source's own orientation.
struct Blocks {
  int64_t rows, cols;                 // extent of a block
  int64_t row_stride, col_stride;     // in the scale grid that the general family keeps: dense, source orientation
  int64_t count;
};

struct Place {
  int64_t row, column;
  int in_row, in_column;
};
__device__ __forceinline__ Place place(int pass) {
  const int x = static_cast<int>(threadIdx.x) % side, y = static_cast<int>(threadIdx.x) / side + pass * (side / rows_a_thread);
  return {static_cast<int64_t>(blockIdx.y) * side + y, static_cast<int64_t>(blockIdx.x) * side + x, y, x};
}

// Maximum of |x| over each block, +Inf where an element is not finite. A warp has 32 neighbours of one row: where one block holds them all it sends one atomic.
template <SourceKind K, class T>
__global__ void __launch_bounds__(threads) block_maxima(SourceParams s, Blocks b, unsigned* maxima, unsigned* tensor_amax, unsigned long long* nonfinite) {
  unsigned largest = 0;
  int bad = 0;
#pragma unroll
  for (int pass = 0; pass < rows_a_thread; ++pass) {
    const Place at = place(pass);
    const bool inside = at.row < s.rows && at.column < s.cols;
    const unsigned bits = inside ? bits_of(source_element<K, T>(s, at.row, at.column)) & 0x7FFFFFFFu : 0;
    bad += bits >= inf_bits;
    const unsigned magnitude = bits > inf_bits ? inf_bits : bits;
    largest = magnitude > largest ? magnitude : largest;
    const int64_t block = inside ? at.row / b.rows * b.row_stride + at.column / b.cols * b.col_stride : -1;
    const int64_t first = __shfl_sync(all_lanes, block, 0);
    const bool together = __ballot_sync(all_lanes, block == first || !inside) == all_lanes;
    if (b.count == 1) continue;   // the CTA's largest will do
    const unsigned shared_max = warp_max(magnitude);
    if (together) {
      if (threadIdx.x % 32 == 0 && inside) atomicMax(maxima + block, shared_max);
    } else if (inside) {
      atomicMax(maxima + block, magnitude);
    }
  }
  largest = block_max<threads>(largest);
  if (threadIdx.x == 0 && largest) {
    atomicMax(tensor_amax, largest);
    if (b.count == 1) atomicMax(maxima, largest);
  }
  if (bad && nonfinite) atomicAdd(nonfinite, static_cast<unsigned long long>(bad));
}

// Multiplier of each block, and its inverse where the image wants it.
__global__ void make_scales(ImageParams image, Blocks b, int64_t grid_cols, const unsigned* maxima, const float* tensor_amax, float* multiplier) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= b.count) return;
  const Multiplier m = multiplier_of(image.scale, __uint_as_float(maxima[i]), *tensor_amax);
  multiplier[i] = m.scale;
  const int64_t r = i / grid_cols, c = i % grid_cols;
  image.scale_inv[(image.transposed ? c : r) * image.scale_row_stride + (image.transposed ? r : c) * image.scale_col_stride] = m.inverse;
}

__device__ __forceinline__ void merge_into(ImageHealth& h, const ImageHealth& o) {
  h.elements += o.elements;
  h.nonfinite += o.nonfinite;
  h.underflow += o.underflow;
  h.saturated += o.saturated;
  h.amax = fmaxf(h.amax, o.amax);
  h.scale_min = fminf(h.scale_min, o.scale_min);
  h.scale_max = fmaxf(h.scale_max, o.scale_max);
  h.sum_xx += o.sum_xx;
  h.sum_qq += o.sum_qq;
  h.sum_xq += o.sum_xq;
  h.sum_ee += o.sum_ee;
}

struct Observed {
  int64_t nonfinite = 0, underflow = 0, saturated = 0, elements = 0;
  float amax = 0;
  double xx = 0, qq = 0, xq = 0, ee = 0;

  __device__ __forceinline__ void note(float x, float decoded, float scale, float inverse, float limit) {
    ++elements;
    if ((bits_of(x) & 0x7FFFFFFFu) >= inf_bits) {
      ++nonfinite;
      return;
    }
    const double wide = x, read = static_cast<double>(decoded) * inverse, error = read - wide;
    amax = fmaxf(amax, fabsf(x));
    underflow += x != 0.0f && decoded == 0.0f;
    saturated += fabsf(x * scale) > limit;
    xx += wide * wide;
    qq += read * read;
    xq += wide * read;
    ee += error * error;
  }
};

template <SourceKind K, class T, bool Health>
__global__ void __launch_bounds__(threads) encode_general(SourceParams s, ImageParams image, Blocks b, const float* multiplier, RandomParams random, float limit, ImageHealth* tiles) {
  __shared__ uint8_t turned[side][side + 4];
  const Dtype format = image.scale.format;
  const StepKey key = image.stochastic ? *random.key : StepKey{};
  const PhiloxStream rng(random.seed, RngPurpose::stochastic_rounding, random.site_hash, key.step);
  const int64_t first_row = key.first_row + random.place.first_row, columns = random.place.columns ? random.place.columns : s.cols;
  Observed seen;
#pragma unroll
  for (int pass = 0; pass < rows_a_thread; ++pass) {
    const Place at = place(pass);
    if (at.row < s.rows && at.column < s.cols) {
      const int64_t block_row = at.row / b.rows, block_column = at.column / b.cols;
      const float x = source_element<K, T>(s, at.row, at.column), m = multiplier[block_row * b.row_stride + block_column * b.col_stride], scaled = x * m;
      const uint8_t q = image.stochastic ? encode_stochastic(format, scaled, rng.word(static_cast<uint64_t>((first_row + at.row) * columns + random.place.first_column + at.column))) : encode(format, scaled);
      if (image.transposed) {
        turned[at.in_column][at.in_row] = q;
      } else {
        image.codes[at.row * s.cols + at.column] = q;
      }
      if constexpr (Health) {
        const float inverse =
            image.scale_inv[(image.transposed ? block_column : block_row) * image.scale_row_stride + (image.transposed ? block_row : block_column) * image.scale_col_stride];
        seen.note(x, decode(format, q), m, inverse, limit);
      }
    }
  }
  if (image.transposed) {
    __syncthreads();
#pragma unroll
    for (int pass = 0; pass < rows_a_thread; ++pass) {
      const int x = static_cast<int>(threadIdx.x) % side, y = static_cast<int>(threadIdx.x) / side + pass * (side / rows_a_thread);
      const int64_t column = static_cast<int64_t>(blockIdx.x) * side + y, row = static_cast<int64_t>(blockIdx.y) * side + x;
      if (column < s.cols && row < s.rows) image.codes[column * s.rows + row] = turned[y][x];
    }
  }
  if constexpr (Health) {
    ImageHealth h;
    h.elements = block_sum<threads>(seen.elements);
    h.nonfinite = block_sum<threads>(seen.nonfinite);
    h.underflow = block_sum<threads>(seen.underflow);
    h.saturated = block_sum<threads>(seen.saturated);
    h.amax = block_max<threads>(seen.amax);
    h.sum_xx = block_sum<threads>(seen.xx);
    h.sum_qq = block_sum<threads>(seen.qq);
    h.sum_xq = block_sum<threads>(seen.xq);
    h.sum_ee = block_sum<threads>(seen.ee);
    if (threadIdx.x == 0) tiles[static_cast<int64_t>(blockIdx.y) * gridDim.x + blockIdx.x] = h;
  }
}

// Merges the tiles' statistics in order, and the multipliers of blocks whose maximum is finite and not zero. One CTA: thread t takes a fixed share.
__global__ void __launch_bounds__(threads) merge_health(const ImageHealth* tiles, int64_t n, const unsigned* maxima, const float* multiplier, int64_t blocks, ImageHealth* out) {
  __shared__ ImageHealth parts[threads];
  ImageHealth h;
  const int64_t each = (n + threads - 1) / threads, first = threadIdx.x * each;
  for (int64_t i = first; i < first + each && i < n; ++i) merge_into(h, tiles[i]);
  for (int64_t i = threadIdx.x; i < blocks; i += threads) {
    if (maxima[i] == 0 || maxima[i] >= inf_bits) continue;
    h.scale_min = fminf(h.scale_min, multiplier[i]);
    h.scale_max = fmaxf(h.scale_max, multiplier[i]);
  }
  parts[threadIdx.x] = h;
  __syncthreads();
  if (threadIdx.x != 0) return;
  ImageHealth total = *out;
  for (int i = 0; i < threads; ++i) merge_into(total, parts[i]);
  *out = total;
}

__global__ void raise_amax(const float* tensor_amax, float* amax) { *amax = fmaxf(*amax, *tensor_amax); }

// numerics/hadamard.h along the contraction: along rows for a row image, down columns for a transposed one. A thread has one group of 16.
template <SourceKind K, class T>
__global__ void transform(SourceParams s, bool down_columns, float* out, unsigned long long* nonfinite) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t groups = ((down_columns ? s.rows : s.cols) + hadamard_size - 1) / hadamard_size, others = down_columns ? s.cols : s.rows;
  if (i >= groups * others) return;
  // Neighbouring threads: neighbouring columns.
  const int64_t group = down_columns ? i / others : i % groups, other = down_columns ? i % others : i / groups;
  const int64_t first = group * hadamard_size, extent = down_columns ? s.rows : s.cols;
  const int n = static_cast<int>(extent - first < hadamard_size ? extent - first : hadamard_size);
  float v[hadamard_size];
  int bad = 0;
  for (int e = 0; e < hadamard_size; ++e) {
    v[e] = 0.0f;
    if (e < n) v[e] = down_columns ? source_element<K, T>(s, first + e, other) : source_element<K, T>(s, other, first + e);
    bad += (bits_of(v[e]) & 0x7FFFFFFFu) >= inf_bits;
  }
  if (n == hadamard_size) hadamard16(v);
  for (int e = 0; e < hadamard_size; ++e) {
    if (e < n) out[down_columns ? (first + e) * s.cols + other : other * s.cols + first + e] = v[e];
  }
  if (bad && nonfinite) atomicAdd(nonfinite, static_cast<unsigned long long>(bad));
}

template <SourceKind K, class T>
__global__ void write_values(SourceParams s) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < s.rows * s.cols) static_cast<T*>(s.value)[i / s.cols * s.value_ld + i % s.cols] = from_float<T>(source_element<K, T>(s, i / s.cols, i % s.cols));
}

// N neighbours of one block a thread; N divides cols.
template <int N, class T>
__global__ void dequantize_image(ImageParams image, int64_t rows, int64_t cols, Blocks b, T* out, int64_t ld) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * N;
  if (i >= rows * cols) return;
  const int64_t r = i / cols, c = i % cols;
  const float inverse = image.scale_inv[r / b.rows * image.scale_row_stride + c / b.cols * image.scale_col_stride];
  uint8_t code[N];
  if constexpr (N == 8) {
    const uint2 eight = *reinterpret_cast<const uint2*>(image.codes + i);
#pragma unroll
    for (int j = 0; j < 4; ++j) code[j] = static_cast<uint8_t>(eight.x >> 8 * j), code[4 + j] = static_cast<uint8_t>(eight.y >> 8 * j);
  } else {
    code[0] = image.codes[i];
  }
  float x[N];
#pragma unroll
  for (int j = 0; j < N; ++j) x[j] = decode(image.scale.format, code[j]) * inverse;
  T* to = out + r * ld + c;
  if constexpr (N == 8 && sizeof(T) == 2) {
    ptx::store_16(to, pack8(x));
  } else {
#pragma unroll
    for (int j = 0; j < N; ++j) to[j] = from_float<T>(x[j]);
  }
}

// ---- host side

template <class Body>
void with_source(const SourceParams& s, Body&& body) {
  const auto with_kind = [&]<class T>() {
    switch (s.kind) {
      case SourceKind::plain: return body.template operator()<SourceKind::plain, T>();
      case SourceKind::norm: return body.template operator()<SourceKind::norm, T>();
      case SourceKind::swiglu: return body.template operator()<SourceKind::swiglu, T>();
      case SourceKind::swiglu_grad: return body.template operator()<SourceKind::swiglu_grad, T>();
      case SourceKind::adamw: return;   // updates come first, then their weights are a plain source
    }
  };
  if (s.wide) return with_kind.template operator()<float>();
  return with_kind.template operator()<bf16>();
}

Blocks source_blocks(const ImageParams& image, int64_t rows, int64_t cols) {
  const int64_t along_rows = image.transposed ? image.block_cols : image.block_rows, along_cols = image.transposed ? image.block_rows : image.block_cols;
  const int64_t block_rows = along_rows ? along_rows : rows, block_cols = along_cols ? along_cols : cols;
  const int64_t grid_rows = (rows + block_rows - 1) / block_rows, grid_cols = (cols + block_cols - 1) / block_cols;
  return {block_rows, block_cols, grid_cols, 1, grid_rows * grid_cols};
}

dim3 element_grid(const SourceParams& s) { return {blocks_for(s.cols, side), blocks_for(s.rows, side)}; }

// What is quantized: the source, or its transform, whose non-finite elements are those of the source, counted here.
SourceParams transformed_source(cudaStream_t stream, const SourceParams& source, const ImageParams& image, unsigned long long*& nonfinite, const QuantizeScratch& scratch) {
  if (!image.hadamard) return source;
  const int64_t extent = image.transposed ? source.rows : source.cols, groups = (extent + hadamard_size - 1) / hadamard_size * (image.transposed ? source.cols : source.rows);
  with_source(source, [&]<SourceKind K, class T>() {
    launch("transform", stream, transform<K, T>, blocks_for(groups, threads), threads, 0, source, image.transposed, scratch.transformed, nonfinite);
  });
  SourceParams s;
  s.wide = true;
  s.x = scratch.transformed;
  s.rows = source.rows;
  s.cols = s.ld = source.cols;
  nonfinite = nullptr;
  return s;
}

void take_maxima(cudaStream_t stream, const SourceParams& s, const Blocks& blocks, unsigned* block_amax, float* tensor_amax, unsigned long long* nonfinite) {
  check(cudaMemsetAsync(block_amax, 0, static_cast<size_t>(blocks.count) * sizeof(unsigned), stream), "clear maxima");
  check(cudaMemsetAsync(tensor_amax, 0, sizeof(float), stream), "clear the maximum");
  with_source(s, [&]<SourceKind K, class T>() {
    launch("block maxima", stream, block_maxima<K, T>, element_grid(s), threads, 0, s, blocks, block_amax, reinterpret_cast<unsigned*>(tensor_amax), nonfinite);
  });
}

// Half the spacing of the largest values above the largest: beyond it a scaled value is saturated.
float saturation_limit(Dtype format) {
  const FormatInfo f = format_info(format);
  return f.max_finite + 0.5f * std::ldexp(1.0f, f.emax - f.mantissa_bits);
}

}  // namespace

int64_t health_tiles(int64_t rows, int64_t cols) { return ((rows + side - 1) / side) * ((cols + side - 1) / side); }

void launch_shared_amaxes(cudaStream_t stream, const SourceParams& source, const ImageParams& image, float* amax, const QuantizeScratch& scratch) {
  unsigned long long* uncounted = nullptr;
  const SourceParams s = transformed_source(stream, source, image, uncounted, scratch);
  take_maxima(stream, s, source_blocks(image, s.rows, s.cols), reinterpret_cast<unsigned*>(amax), scratch.tensor_amax, nullptr);
}

void launch_quantize_general(cudaStream_t stream, const SourceParams& source, const ImageParams& image, const StatisticsParams& statistics, bool count_nonfinite,
                             const RandomParams& random, const QuantizeScratch& scratch) {
  auto* nonfinite = count_nonfinite ? reinterpret_cast<unsigned long long*>(statistics.nonfinite) : nullptr;
  const SourceParams s = transformed_source(stream, source, image, nonfinite, scratch);
  const Blocks blocks = source_blocks(image, s.rows, s.cols);
  // Given amaxes of non-negative floats are bits like those of the maxima. Of two-level scales they are the tensor's alone, unless its one block is the tensor.
  const float* given = image.scale.stored ? nullptr : image.amax;
  const bool two_level = image.scale.rule == ScaleRule::two_level, one_block = image.block_rows == 0 && image.block_cols == 0;
  const unsigned* block_amax = given && (!two_level || one_block) ? reinterpret_cast<const unsigned*>(given) : scratch.block_amax;
  const float* tensor_amax = given ? given : scratch.tensor_amax;
  if (block_amax == scratch.block_amax || statistics.amax || nonfinite) take_maxima(stream, s, blocks, scratch.block_amax, scratch.tensor_amax, nonfinite);
  ImageHealth* health = image.transposed ? statistics.col_health : statistics.row_health;
  with_source(s, [&]<SourceKind K, class T>() {
    launch("scales", stream, make_scales, blocks_for(blocks.count, threads), threads, 0, image, blocks, blocks.row_stride, block_amax, tensor_amax, scratch.multiplier);
    auto* kernel = health ? encode_general<K, T, true> : encode_general<K, T, false>;
    launch("encode", stream, kernel, element_grid(s), threads, 0, s, image, blocks, scratch.multiplier, random, saturation_limit(image.scale.format), scratch.health);
  });
  if (health) {
    launch("merge statistics", stream, merge_health, 1, threads, 0, scratch.health, health_tiles(s.rows, s.cols), block_amax, scratch.multiplier, blocks.count, health);
  }
  if (statistics.amax) launch("raise amax", stream, raise_amax, 1, 1, 0, scratch.tensor_amax, statistics.amax);
}

void launch_source_values(cudaStream_t stream, const SourceParams& s) {
  with_source(s, [&]<SourceKind K, class T>() { launch("values", stream, write_values<K, T>, blocks_for(s.rows * s.cols, threads), threads, 0, s); });
}

void launch_dequantize(cudaStream_t stream, const ImageParams& image, int64_t rows, int64_t cols, bool wide, void* out, int64_t ld) {
  const Blocks b{image.block_rows ? image.block_rows : rows, image.block_cols ? image.block_cols : cols, 0, 0, 0};
  const auto is_aligned = [](const void* p, uintptr_t bytes) { return reinterpret_cast<uintptr_t>(p) % bytes == 0; };
  const bool by_eight = cols % 8 == 0 && b.cols % 8 == 0 && ld % 8 == 0 && is_aligned(image.codes, 8) && is_aligned(out, 16);
  const auto with = [&]<class T>(T* to) {
    const unsigned blocks = blocks_for(rows * cols, threads * (by_eight ? 8 : 1));
    launch("dequantize", stream, by_eight ? dequantize_image<8, T> : dequantize_image<1, T>, blocks, threads, 0, image, rows, cols, b, to, ld);
  };
  wide ? with(static_cast<float*>(out)) : with(static_cast<bf16*>(out));
}

}  // namespace octet::cuda
