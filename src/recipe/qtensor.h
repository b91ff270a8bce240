// Operand images: what a GEMM reads. See recipe.h for the row image / column image convention.
#pragma once
#include <vector>

#include "core/arena.h"
#include "recipe/recipe.h"

namespace octet {

// How images lie in memory.
enum class ImageLayout : uint8_t {
  source,  // CPU: a column image keeps the layout of its source ([k, rows], transposed = true): its BLAS reads both, and only the scales differ
  gemm,    // CUDA: every image is stored [rows, k], since FP8 products on Hopper want the contraction contiguous in both operands, with scales as cuBLASLt reads them
};

// An operand as it lies in memory. Logically a matrix [rows, k] with the contraction last.
struct Operand {
  MatrixView data;             // stored matrix: codes of a format, or bf16 / f32 values
  Tensor scale_inv;            // f32 dequantization multipliers, one a block of the stored matrix; empty when unquantized
  int64_t scale_row_stride = 0, scale_col_stride = 0;  // floats between the scales of neighbouring block rows and block columns
  bool transposed = false;     // stored as [k, rows]
  int64_t block_rows = 0, block_cols = 0;  // block of the stored matrix; 0: whole extent
  ScaleKind scale = ScaleKind::fp32;       // what values the scales have

  int64_t rows() const { return transposed ? data.cols : data.rows; }
  int64_t k() const { return transposed ? data.rows : data.cols; }
  bool quantized() const { return data.dtype != Dtype::bf16 && data.dtype != Dtype::f32; }
  // The stored matrix of an image, which is dense.
  Tensor codes() const { return {data.data, data.dtype, {data.rows, data.cols}}; }

  // Its scales as they lie, dense: a row of blocks behind the other, each scale_row_stride long, or column behind column. Not of slices.
  bool scales_by_columns() const { return scale_row_stride == 1 && scale_col_stride == scale_inv.rows(); }
  Tensor scales() const {
    return {scale_inv.data, Dtype::f32, scales_by_columns() ? Shape{scale_inv.cols(), scale_inv.rows()} : Shape{scale_inv.rows(), scale_row_stride}};
  }

  // The same stored matrix read the other way: right for unquantized data and for square blocks only (recipe.h).
  Operand flipped() const {
    Operand o = *this;
    o.transposed = !transposed;
    return o;
  }
  // Logical rows [begin, begin + count).
  Operand slice_rows(int64_t begin, int64_t count) const;

  static Operand plain(MatrixView m, bool transposed = false) {
    Operand o;
    o.data = m;
    o.transposed = transposed;
    return o;
  }
};

// Number of blocks of `block` elements in n; block 0 is the whole extent.
inline int64_t block_count(int64_t n, int64_t block) { return block == 0 ? 1 : (n + block - 1) / block; }

// Whether one stored image serves as row and as column image: where the layout of the device lets products read it both ways.
inline bool one_image(ImageLayout layout, const QuantSpec& row, const QuantSpec& col) { return layout == ImageLayout::source && images_share_bytes(row, col); }

// Memory for the image of a [rows, cols] matrix. column: the image for GEMMs that contract over the rows. Null tensors when counting.
// Layout gemm: scales of 1xN blocks (N > 1) lie [k / N][rows], those of NxM blocks [rows / N][k / M rounded up to 4] (cuBLASLt's VEC128 and BLK128x128),
// others row by row.
Operand alloc_image(Arena& arena, const QuantSpec& spec, int64_t rows, int64_t cols, bool column, ImageLayout layout = ImageLayout::source);

// What an image says, whatever its layout: codes [rows, cols] as the source lies, and the scales of the source's grid of blocks, row by row.
struct PlainImage {
  int64_t rows = 0, cols = 0, grid_rows = 0, grid_cols = 0;
  std::vector<uint8_t> codes;
  std::vector<float> scale_inv;
  MatrixView code_matrix() const;    // as u8
  MatrixView scale_matrix() const;
};
// image: in host memory.
PlainImage plain_image(const Operand& image, bool column);
// Floats from the first scale of an image to its last, as they lie in memory.
int64_t scale_extent(const Operand& image);

}  // namespace octet
