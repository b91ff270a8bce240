// Quantization kernels and the producers fused into them. Plain structs and pointers to device memory; cuda/quantize.cpp fills them from the
// operators' arguments, ops/quantize.h has the formulas. Every launch is asynchronous on `stream`.
//
// A matrix that is quantized is never read from memory as such when its producer is at hand: a Source computes its elements, rounded to the compute
// format, from what the producer reads. Two families of kernels serve all sources and recipes, with the same bits:
//   tile      one block of 128 x 128 elements a CTA, values in registers, both images, scales, amax and non-finite count in one pass. Scales are
//             made in the tile (1x128 and 128x128 blocks) or were made before (one a tensor, a row, a column)
//   general   any block shape, format and scale rule, statistics, stochastic rounding: maxima of blocks, scales, then codes
#pragma once
#include <cuda_runtime.h>

#include <cstdint>
#include <span>

#include "core/dtype.h"
#include "core/place.h"
#include "core/step_key.h"
#include "cuda/kernels/state.h"
#include "numerics/bits.h"
#include "recipe/health.h"

namespace octet::cuda {

enum class SourceKind : uint8_t { plain, norm, swiglu, swiglu_grad, adamw };

// A source has one matrix; that of SwiGLU's gradient has two, the gate's and up's, with images and scales of their own.
OCTET_HD constexpr int parts_of(SourceKind kind) { return kind == SourceKind::swiglu_grad ? 2 : 1; }

// What the elements of the [rows, cols] matrix are computed from; bf16 or f32 (wide).
struct SourceParams {
  SourceKind kind = SourceKind::plain;
  bool wide = false;
  const void* x = nullptr;        // plain: the matrix; adamw: the weights, which its first launch updates; norm: s; swiglu, swiglu_grad: gate_up, [rows, 2 cols], gate first
  int64_t ld = 0;                 // elements between rows of x
  const void* gamma = nullptr;    // norm: [cols]
  const float* rstd = nullptr;    // norm: [rows]
  const void* dy = nullptr;       // swiglu_grad: [rows, cols]
  unsigned* amax = nullptr;       // plain: bits of the matrix' amax, where its producer has taken it
  AdamwParams adamw{};            // adamw: the state of the same shape; the tile family alone has this source
  void* value = nullptr;          // where the rounded matrix itself is written to, or null
  int64_t value_ld = 0;           // elements between its rows
  int64_t rows = 0, cols = 0;
  int part = 0;                   // of the source's matrices
};

// Values of the parts lie side by side.
OCTET_HD inline SourceParams select_part(SourceParams s, int part) {
  s.part = part;
  if (s.value) s.value = static_cast<char*>(s.value) + part * s.cols * (s.wide ? 4 : 2);
  return s;
}

enum class ScaleRule : uint8_t { fp32, e8m0, two_level };

struct ScaleParams {
  ScaleRule rule = ScaleRule::fp32;
  Dtype format = Dtype::e4m3;
  bool pow2 = false, fp64_divide = false;
  float epsilon = 0, overflow_scale = 0;
  const float* stored = nullptr;  // delayed and static scaling: the multiplier itself
};

// One image, stored [rows, cols] of the source or, transposed, [cols, rows].
struct ImageParams {
  uint8_t* codes = nullptr;       // null: not wanted
  bool transposed = false;
  float* scale_inv = nullptr;
  int64_t scale_row_stride = 0, scale_col_stride = 0;   // of the stored matrix' blocks
  int64_t block_rows = 0, block_cols = 0;               // of the stored matrix; 0: whole extent
  ScaleParams scale;
  bool stochastic = false, hadamard = false;
  const float* amax = nullptr;    // given amaxes: of the stored matrix' blocks, with two-level scales of the tensor; null: the source has them
};

struct StatisticsParams {
  float* amax = nullptr;             // running maximum, +Inf when an element was not finite
  int64_t* nonfinite = nullptr;      // running count
  ImageHealth* row_health = nullptr;
  ImageHealth* col_health = nullptr;
};

struct RandomParams {
  uint64_t seed = 0, site_hash = 0;
  const StepKey* key = nullptr;   // read by stochastic rounding only
  MatrixPlace place{};
};

// What the general family needs beside its operands, for one image of a matrix.
struct QuantizeScratch {
  unsigned* block_amax;      // [block rows x block cols] bits of floats
  float* multiplier;         // the same shape
  float* tensor_amax;        // [1]
  float* transformed;        // [rows x cols], with hadamard only
  ImageHealth* health;       // [health_tiles], with statistics only
};
int64_t health_tiles(int64_t rows, int64_t cols);

// What is made of one matrix.
struct ImagePair {
  ImageParams row, col;
  StatisticsParams statistics;
};

// Where a multiplier of an image of the tile family comes from.
enum class From : int { nowhere, memory, blocks_of_row, tile };
struct TileImage {
  ImageParams image;
  From from = From::nowhere;
  float* multiplier = nullptr;   // memory: one for the matrix (stride 0), a row or a column of the source (stride 1)
  int stride = 0;
};
struct TilePart {
  TileImage row, column;
  StatisticsParams statistics;
};

// What scales of the tile family wait for: nothing (they are stored, or their amaxes given), maxima of their tile, of the tensor, of its rows or columns.
enum class Awaits : uint8_t { nothing, tile, tensor, lines };
Awaits scales_await(const ImagePair& pair);

// Whether the tile family serves these images of this source, one pair a part: all parts at once, which want the same images.
bool tile_serves(const SourceParams& source, std::span<const ImagePair> pairs);
// `scratch`: floats, tile_scratch_floats() of them: maxima and multipliers of scales that are made before the tiles.
int64_t tile_scratch_floats(const SourceParams& source, std::span<const ImagePair> pairs);
void launch_quantize_tiles(cudaStream_t stream, const SourceParams& source, std::span<const ImagePair> pairs, float* scratch);
// For a producer that has tiles in its hands and quantizes them itself (kernels/quantize_tile.cuh), of images that await nothing or their tile: makes the
// multipliers of stored scales and of given amaxes.
TilePart launch_tile_scales(cudaStream_t stream, const SourceParams& source, const ImagePair& pair, float* scratch);

// Maxima of a matrix, of its rows and of its columns, by the tile family; null: not wanted. Whether it serves the source: tile_takes_maxima().
bool tile_takes_maxima(const SourceParams& source);
void launch_tile_maxima(cudaStream_t stream, const SourceParams& source, float* tensor, float* rows, float* columns);

// Maxima of the blocks of an image that is described by its blocks and transform alone, into `amax`; by the general family.
void launch_shared_amaxes(cudaStream_t stream, const SourceParams& source, const ImageParams& image, float* amax, const QuantizeScratch& scratch);

// One image of the source's part `source.part`. count_nonfinite: of two images of one matrix only one counts.
void launch_quantize_general(cudaStream_t stream, const SourceParams& source, const ImageParams& image, const StatisticsParams& statistics, bool count_nonfinite,
                             const RandomParams& random, const QuantizeScratch& scratch);

// The rounded values of one part alone.
void launch_source_values(cudaStream_t stream, const SourceParams& source);

// out[r, c] = round(decode(code) * scale_inv), in the orientation that the image is stored in. out: bf16 or f32 (wide), rows `ld` elements apart.
void launch_dequantize(cudaStream_t stream, const ImageParams& image, int64_t stored_rows, int64_t stored_cols, bool wide, void* out, int64_t ld);

}  // namespace octet::cuda
