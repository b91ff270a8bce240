#include "model/dump.h"

#include <cstring>

namespace octet {

void Dump::add(const std::string& entry_name, const Strided& m, bool transposed) {
  const size_t size = size_bytes(m.dtype);
  Entry e{entry_name, m.dtype, transposed ? Shape{m.cols, m.rows} : Shape{m.rows, m.cols}, std::vector<std::byte>(static_cast<size_t>(m.rows * m.cols) * size)};
  if (!e.bytes.empty()) {
    std::vector<std::byte> stored(static_cast<size_t>((m.rows - 1) * m.row_stride + (m.cols - 1) * m.col_stride + 1) * size);
    machine_.copy_out(stored.data(), m.data, stored.size());
    for (int64_t r = 0; r < m.rows; ++r) {
      for (int64_t c = 0; c < m.cols; ++c) {
        const auto from = static_cast<size_t>(r * m.row_stride + c * m.col_stride), to = static_cast<size_t>(transposed ? c * m.rows + r : r * m.cols + c);
        std::memcpy(e.bytes.data() + to * size, stored.data() + from * size, size);
      }
    }
  }
  entries.push_back(std::move(e));
}

void Dump::add(const std::string& entry_name, const MatrixView& m) { add(entry_name, {m.data, m.dtype, m.rows, m.cols, m.ld, 1}, false); }

void Dump::add_image(const std::string& entry_name, const Operand& image) {
  if (!image.quantized()) return;
  const MatrixView& d = image.data;
  const Tensor& s = image.scale_inv;
  add(entry_name + ".data", {d.data, d.dtype, d.rows, d.cols, d.ld, 1}, image.transposed);
  add(entry_name + ".scale_inv", {s.data, Dtype::f32, s.rows(), s.cols(), image.scale_row_stride, image.scale_col_stride}, image.transposed);
}

}  // namespace octet
