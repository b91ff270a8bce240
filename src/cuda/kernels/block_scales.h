// MXFP8 and NVFP4 operands as cuBLASLt reads them, made of images just before a product. Images keep one form for all devices: scales in FP32, a code a byte.
//
// Scales: bytes (E8M0, E4M3) in tiles of 128 rows x 4 blocks (cuBLAS documentation, "1D Block Scaling Factors Layout"): tiles one behind the other along the contraction, then
// down the rows, byte (r % 32) * 16 + r % 128 / 32 * 4 + c % 4 of a tile; zeros where the matrix has ended. That is a pass over FP32 scales, an eighth of MXFP8's codes in
// bytes, a quarter of NVFP4's (which is read three times, since its factor is fitted first: numerics/scale.h).
// Codes: E2M1 two a byte, the first in the lower half (cuda_fp4.h, __nv_fp4x2_e2m1). The factors of both tensors and beta are the product's alpha and beta, in device memory.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

namespace octet::cuda {

// Of NVFP4 scales: the bits of the largest, and which candidates for the tensor's factor do not fit.
struct TwoLevelFit {
  unsigned largest, misfits;
};

// The scales of an operand, [grid_rows, blocks].
struct BlockScales {
  const float* scale_inv = nullptr;
  int64_t row_stride = 0, col_stride = 0;   // floats between block rows, blocks of a row
  int64_t grid_rows = 0, blocks = 0;
  int64_t rows = 0, block_rows = 1;         // of the operand; rows that share a scale: 16 of NVFP4's weights
  uint8_t* tiles = nullptr;                 // [tiled_scale_bytes(rows, blocks)]
  TwoLevelFit* fit = nullptr;               // NVFP4: overwritten; null: MXFP8
};
constexpr int64_t tiled_scale_bytes(int64_t rows, int64_t blocks) { return (rows + 127) / 128 * ((blocks + 3) / 4) * 512; }
void launch_scale_tiles(cudaStream_t stream, const BlockScales& s);

// codes: [rows, k], rows `ld` apart; k and ld multiples of 8. packed: [rows, k / 2] bytes.
void launch_pack_e2m1(cudaStream_t stream, const uint8_t* codes, int64_t ld, int64_t rows, int64_t k, uint8_t* packed);

// alpha_beta[0] = the factors of both operands' scales, alpha_beta[1] = beta.
void launch_two_level_alpha(cudaStream_t stream, const TwoLevelFit* a, const TwoLevelFit* b, float beta, float* alpha_beta);

}  // namespace octet::cuda
