#include "cuda/kernels/block_scales.h"

#include "cuda/kernels/reduce.cuh"
#include "cuda/launch.h"
#include "numerics/scale.h"

namespace octet::cuda {
namespace {

constexpr int threads = 256, tile_rows = 128, tile_blocks = 4, words_a_tile = tile_rows * tile_blocks / 4;

// Neighbouring threads: neighbouring rows, as scales of 1xN blocks lie.
__device__ __forceinline__ float nth_scale(const BlockScales& s, int64_t i) { return s.scale_inv[i % s.grid_rows * s.row_stride + i / s.grid_rows * s.col_stride]; }

__global__ void __launch_bounds__(threads) find_largest(BlockScales s) {
  const int64_t i = int64_t{blockIdx.x} * threads + threadIdx.x;
  const unsigned largest = block_max<threads>(i < s.grid_rows * s.blocks ? __float_as_uint(nth_scale(s, i)) : 0u);   // bits of floats that are not negative lie in their order
  if (threadIdx.x == 0) atomicMax(&s.fit->largest, largest);
}

__global__ void __launch_bounds__(threads) find_misfits(BlockScales s) {
  const int64_t i = int64_t{blockIdx.x} * threads + threadIdx.x;
  if (i >= s.grid_rows * s.blocks) return;
  const unsigned misfits = two_level_misfits(nth_scale(s, i), __uint_as_float(s.fit->largest));
  if (misfits & ~s.fit->misfits) atomicOr(&s.fit->misfits, misfits);
}

// A CTA has a tile, a thread the four blocks of a row.
template <bool TwoLevel>
__global__ void __launch_bounds__(tile_rows) tile_scales(BlockScales s) {
  const int64_t tiles_a_row = (s.blocks + tile_blocks - 1) / tile_blocks;
  const int64_t row = blockIdx.x / tiles_a_row * tile_rows + threadIdx.x, first = blockIdx.x % tiles_a_row * tile_blocks;
  const float largest = TwoLevel ? __uint_as_float(s.fit->largest) : 0.0f;
  const int candidate = TwoLevel ? two_level_candidate(s.fit->misfits) : 0;
  unsigned word = 0;
#pragma unroll
  for (int c = 0; c < tile_blocks; ++c) {
    if (row >= s.rows || first + c >= s.blocks) continue;
    const float scale = s.scale_inv[row / s.block_rows * s.row_stride + (first + c) * s.col_stride];
    const uint8_t code = TwoLevel ? encode<Dtype::e4m3>(two_level_ratio(scale, largest, candidate)) : e8m0_encode_rz(scale);
    word |= static_cast<unsigned>(code) << 8 * c;
  }
  reinterpret_cast<unsigned*>(s.tiles)[int64_t{blockIdx.x} * words_a_tile + threadIdx.x % 32 * 4 + threadIdx.x / 32] = word;
}

// The lower halves of four bytes side by side.
__device__ __forceinline__ unsigned halves(unsigned w) { return (w & 0xFu) | (w >> 4 & 0xF0u) | (w >> 8 & 0xF00u) | (w >> 12 & 0xF000u); }

__global__ void __launch_bounds__(threads) pack_e2m1(const uint8_t* codes, int64_t ld, int64_t rows, int64_t k, uint8_t* packed) {
  const int64_t i = (int64_t{blockIdx.x} * threads + threadIdx.x) * 8;
  if (i >= rows * k) return;
  const uint2 eight = *reinterpret_cast<const uint2*>(codes + i / k * ld + i % k);
  reinterpret_cast<unsigned*>(packed)[i / 8] = halves(eight.x) | halves(eight.y) << 16;
}

__device__ __forceinline__ float factor(const TwoLevelFit& f) {
  return numerics_detail::divide_rn(__uint_as_float(f.largest), two_level_top_code(two_level_candidate(f.misfits)));
}

__global__ void two_level_alpha(const TwoLevelFit* a, const TwoLevelFit* b, float beta, float* alpha_beta) {
  alpha_beta[0] = factor(*a) * factor(*b);
  alpha_beta[1] = beta;
}

}  // namespace

void launch_scale_tiles(cudaStream_t stream, const BlockScales& s) {
  const unsigned tiles = static_cast<unsigned>(tiled_scale_bytes(s.rows, s.blocks) / (words_a_tile * 4));
  if (tiles == 0) return;
  if (!s.fit) return launch("tile scales", stream, tile_scales<false>, tiles, tile_rows, 0, s);
  check(cudaMemsetAsync(s.fit, 0, sizeof *s.fit, stream), "clear the largest scale");
  const unsigned scales = blocks_for(s.grid_rows * s.blocks, threads);
  launch("find the largest scale", stream, find_largest, scales, threads, 0, s);
  launch("fit a factor to scales", stream, find_misfits, scales, threads, 0, s);
  launch("tile scales", stream, tile_scales<true>, tiles, tile_rows, 0, s);
}

void launch_pack_e2m1(cudaStream_t stream, const uint8_t* codes, int64_t ld, int64_t rows, int64_t k, uint8_t* packed) {
  if (rows * k != 0) launch("pack E2M1", stream, pack_e2m1, blocks_for(rows * k, threads * 8), threads, 0, codes, ld, rows, k, packed);
}

void launch_two_level_alpha(cudaStream_t stream, const TwoLevelFit* a, const TwoLevelFit* b, float beta, float* alpha_beta) {
  launch("alpha of NVFP4", stream, two_level_alpha, 1, 1, 0, a, b, beta, alpha_beta);
}

}  // namespace octet::cuda
