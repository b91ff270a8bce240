#include "recipe/qtensor.h"

namespace octet {

Operand Operand::slice_rows(int64_t begin, int64_t count) const {
  OCTET_CHECK(!transposed, "only row images are sliced by rows");
  OCTET_CHECK(begin >= 0 && begin + count <= data.rows, "rows [{}, {}) of {}", begin, begin + count, data.rows);
  Operand o = *this;
  if (data.data) o.data.data = static_cast<char*>(data.data) + static_cast<size_t>(begin * data.ld) * size_bytes(data.dtype);
  o.data.rows = count;
  if (quantized() && block_rows != 0) {
    OCTET_CHECK(begin % block_rows == 0, "slice at row {} splits a block of {} rows", begin, block_rows);
    OCTET_CHECK(scale_col_stride == 1, "scales that lie by columns are not sliced by rows");
    const int64_t first = begin / block_rows;
    if (scale_inv.data) o.scale_inv.data = scale_inv.as<float>() + first * scale_row_stride;
    o.scale_inv.shape = {block_count(count, block_rows), scale_inv.cols()};
  }
  return o;
}

Operand alloc_image(Arena& arena, const QuantSpec& spec, int64_t rows, int64_t cols, bool column, ImageLayout layout) {
  Operand o;
  const bool flipped = column && layout == ImageLayout::source;
  o.transposed = flipped;
  o.scale = spec.scale;
  // A spec names the block of the contraction-last layout; where the stored matrix of a column image is the other way round, so is its block.
  o.block_rows = flipped ? spec.block_cols : spec.block_rows;
  o.block_cols = flipped ? spec.block_rows : spec.block_cols;
  const bool stored_transposed = column && !flipped;
  const Shape stored = stored_transposed ? Shape{cols, rows} : Shape{rows, cols};
  o.data = arena.alloc(spec.format, stored);
  if (!spec.quantized()) return o;
  const Shape grid{block_count(stored[0], o.block_rows), block_count(stored[1], o.block_cols)};
  o.scale_row_stride = grid[1];
  o.scale_col_stride = 1;
  Shape memory = grid;
  if (layout == ImageLayout::gemm && o.block_cols != 0) {
    if (o.block_rows == 1 && o.block_cols > 1) {
      o.scale_row_stride = 1;
      o.scale_col_stride = grid[0];
    } else if (o.block_rows > 1) {
      o.scale_row_stride = (grid[1] + 3) / 4 * 4;
      memory = {grid[0], o.scale_row_stride};
    }
  }
  o.scale_inv = arena.alloc(Dtype::f32, memory);
  o.scale_inv.shape = grid;
  return o;
}

// Views are mutable; these are only read.
MatrixView PlainImage::code_matrix() const { return Tensor{const_cast<uint8_t*>(codes.data()), Dtype::u8, {rows, cols}}; }
MatrixView PlainImage::scale_matrix() const { return Tensor{const_cast<float*>(scale_inv.data()), Dtype::f32, {grid_rows, grid_cols}}; }

PlainImage plain_image(const Operand& image, bool column) {
  // The CPU backend's column image lies as its source; the device's lies transposed.
  const bool turned = column && !image.transposed;
  const MatrixView& d = image.data;
  const Tensor& s = image.scale_inv;
  PlainImage out;
  out.rows = turned ? d.cols : d.rows;
  out.cols = turned ? d.rows : d.cols;
  out.codes.reserve(static_cast<size_t>(d.elements()));
  for (int64_t r = 0; r < out.rows; ++r) {
    for (int64_t c = 0; c < out.cols; ++c) out.codes.push_back(d.row<uint8_t>(turned ? c : r)[turned ? r : c]);
  }
  out.grid_rows = turned ? s.cols() : s.rows();
  out.grid_cols = turned ? s.rows() : s.cols();
  for (int64_t r = 0; r < out.grid_rows; ++r) {
    for (int64_t c = 0; c < out.grid_cols; ++c) out.scale_inv.push_back(s.as<float>()[(turned ? c : r) * image.scale_row_stride + (turned ? r : c) * image.scale_col_stride]);
  }
  return out;
}

int64_t scale_extent(const Operand& image) {
  return (image.scale_inv.rows() - 1) * image.scale_row_stride + (image.scale_inv.cols() - 1) * image.scale_col_stride + 1;
}

}  // namespace octet
