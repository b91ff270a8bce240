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
    o.scale_inv = scale_inv.slice_rows(begin / block_rows, block_count(count, block_rows));
  }
  return o;
}

Operand alloc_image(Arena& arena, const QuantSpec& spec, int64_t rows, int64_t cols, bool column) {
  Operand o;
  o.transposed = column;
  // A spec names the block of the contraction-last layout; the stored matrix of a column image is the other way round.
  o.block_rows = column ? spec.block_cols : spec.block_rows;
  o.block_cols = column ? spec.block_rows : spec.block_cols;
  o.data = arena.alloc(spec.format, {rows, cols});
  if (spec.quantized()) o.scale_inv = arena.alloc(Dtype::f32, {block_count(rows, o.block_rows), block_count(cols, o.block_cols)});
  return o;
}

}  // namespace octet
