#include "cuda/kernels/rearrange.h"

#include <initializer_list>

#include "cuda/launch.h"
#include "cuda/ptx/memory.h"

namespace octet::cuda {
namespace {

constexpr int threads = 256, warps = threads / 32;
constexpr int side = 128;   // of a tile: a row of it is a warp's access of 128 bytes, when it is read and when it is written

// 4 x 4 bytes: byte i of word j becomes byte j of word i.
__device__ __forceinline__ void turn(uint32_t (&w)[4]) {
  constexpr uint32_t even = 0x00FF00FFu;
  const uint32_t a = (w[0] & even) | (w[1] & even) << 8, b = (w[0] >> 8 & even) | (w[1] & ~even);
  const uint32_t c = (w[2] & even) | (w[3] & even) << 8, d = (w[2] >> 8 & even) | (w[3] & ~even);
  w[0] = (a & 0xFFFFu) | c << 16;
  w[1] = (b & 0xFFFFu) | d << 16;
  w[2] = a >> 16 | (c & 0xFFFF0000u);
  w[3] = b >> 16 | (d & 0xFFFF0000u);
}

// Four neighbouring bytes of a row of n; those beyond the end are 0. whole_words: rows begin and end at multiples of 4.
template <bool whole_words>
__device__ __forceinline__ uint32_t load_four(const uint8_t* row, int64_t c, int64_t n) {
  if constexpr (whole_words) return c < n ? *reinterpret_cast<const uint32_t*>(row + c) : 0;
  uint32_t w = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) w |= c + i < n ? static_cast<uint32_t>(row[c + i]) << 8 * i : 0;
  return w;
}

template <bool whole_words>
__device__ __forceinline__ void store_four(uint8_t* row, int64_t c, int64_t n, uint32_t w) {
  if constexpr (whole_words) {
    if (c < n) *reinterpret_cast<uint32_t*>(row + c) = w;
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (c + i < n) row[c + i] = static_cast<uint8_t>(w >> 8 * i);
  }
}

// A CTA turns a tile. Lane l of a warp has columns 4 l to 4 l + 3 of four rows; the four words that they become belong to row 4 l + j of the turned tile. That row's words lie rotated by
// l in shared memory, so that the lanes of a warp meet no bank twice, neither writing nor reading.
template <bool whole_words>
__global__ void __launch_bounds__(threads) transpose_codes(Transposition p) {
  __shared__ uint32_t turned[side][side / 4];
  const int64_t across = (p.cols + side - 1) / side, r0 = blockIdx.x / across * side, c0 = blockIdx.x % across * side;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const auto* from = static_cast<const uint8_t*>(p.from);
  auto* to = static_cast<uint8_t*>(p.to);
#pragma unroll
  for (int group = warp; group < side / 4; group += warps) {
    uint32_t w[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t r = r0 + 4 * group + i;
      w[i] = r < p.rows ? load_four<whole_words>(from + r * p.from_ld, c0 + 4 * lane, p.cols) : 0;
    }
    turn(w);
#pragma unroll
    for (int j = 0; j < 4; ++j) turned[4 * lane + j][(group + lane) % 32] = w[j];
  }
  __syncthreads();
#pragma unroll 4
  for (int row = warp; row < side; row += warps) {
    if (c0 + row < p.cols) store_four<whole_words>(to + (c0 + row) * p.to_ld, r0 + 4 * lane, p.rows, turned[row][(lane + row / 4) % 32]);
  }
}

__global__ void __launch_bounds__(threads) transpose_scales(Transposition p) {
  const int64_t e = int64_t{blockIdx.x} * threads + threadIdx.x;
  if (e >= p.rows * p.cols) return;
  const int64_t r = e / p.cols, c = e % p.cols;
  static_cast<float*>(p.to)[c * p.to_ld + r] = static_cast<const float*>(p.from)[r * p.from_ld + c];
}

// A word a thread, neighbouring lanes neighbouring words of a part. Sizes in words.
template <class Word>
__global__ void __launch_bounds__(threads) join_columns(const Word* from, Word* whole, unsigned words, unsigned rows, unsigned width, int64_t from_ld, int64_t whole_ld) {
  const unsigned e = blockIdx.x * threads + threadIdx.x;
  if (e >= words) return;
  const unsigned row = e / width, column = e % width, part = row / rows;
  const Word* source = from + row * from_ld + column;
  Word* target = whole + (row - part * rows) * whole_ld + int64_t{part} * width + column;
  if constexpr (sizeof(Word) == 16) {
    ptx::store_16(target, ptx::load_16(source));
  } else {
    *target = *source;
  }
}

bool multiples_of(int64_t bytes, std::initializer_list<int64_t> sizes, std::initializer_list<const void*> pointers) {
  for (const int64_t n : sizes) {
    if (n % bytes != 0) return false;
  }
  for (const void* p : pointers) {
    if (reinterpret_cast<uintptr_t>(p) % static_cast<uintptr_t>(bytes) != 0) return false;
  }
  return true;
}

template <class Word>
void launch_join_of(cudaStream_t stream, const ColumnsOfParts& p) {
  constexpr auto size = static_cast<int64_t>(sizeof(Word));
  const int64_t width = p.width / size, words = p.parts * p.rows * width;
  launch("join columns", stream, join_columns<Word>, blocks_for(words, threads), threads, 0, static_cast<const Word*>(p.from), static_cast<Word*>(p.whole), static_cast<unsigned>(words),
         static_cast<unsigned>(p.rows), static_cast<unsigned>(width), p.from_ld / size, p.whole_ld / size);
}

}  // namespace

void launch_transpose(cudaStream_t stream, const Transposition& p) {
  if (p.wide) return launch("transpose scales", stream, transpose_scales, blocks_for(p.rows * p.cols, threads), threads, 0, p);
  const bool whole_words = multiples_of(4, {p.rows, p.cols, p.from_ld, p.to_ld}, {p.from, p.to});
  const unsigned tiles = blocks_for(p.rows, side) * blocks_for(p.cols, side);
  launch("transpose codes", stream, whole_words ? transpose_codes<true> : transpose_codes<false>, tiles, threads, 0, p);
}

void launch_join_columns(cudaStream_t stream, const ColumnsOfParts& p) {
  const auto of_words = [&](int64_t bytes) { return multiples_of(bytes, {p.width, p.from_ld, p.whole_ld}, {p.from, p.whole}); };
  if (of_words(16)) return launch_join_of<uint4>(stream, p);
  if (of_words(4)) return launch_join_of<uint32_t>(stream, p);
  launch_join_of<uint8_t>(stream, p);
}

}  // namespace octet::cuda
