#include "model/dump.h"

#include <cstring>

namespace octet {
namespace {

// Copies m, transposed when asked, into dense bytes.
std::vector<std::byte> dense_copy(const MatrixView& m, bool transposed) {
  const size_t size = size_bytes(m.dtype);
  std::vector<std::byte> out(static_cast<size_t>(m.elements()) * size);
  const auto* src = static_cast<const std::byte*>(m.data);
  for (int64_t r = 0; r < m.rows; ++r) {
    for (int64_t c = 0; c < m.cols; ++c) {
      const auto from = static_cast<size_t>(r * m.ld + c), to = static_cast<size_t>(transposed ? c * m.rows + r : r * m.cols + c);
      memcpy(out.data() + to * size, src + from * size, size);
    }
  }
  return out;
}

}  // namespace

void Dump::add(const std::string& entry_name, const MatrixView& m) { entries.push_back({entry_name, m.dtype, {m.rows, m.cols}, dense_copy(m, false)}); }

void Dump::add_image(const std::string& entry_name, const Operand& image) {
  if (!image.quantized()) return;
  const MatrixView scales(image.scale_inv);
  const auto shape = [&](const MatrixView& m) { return image.transposed ? Shape{m.cols, m.rows} : Shape{m.rows, m.cols}; };
  entries.push_back({entry_name + ".data", image.data.dtype, shape(image.data), dense_copy(image.data, image.transposed)});
  entries.push_back({entry_name + ".scale_inv", Dtype::f32, shape(scales), dense_copy(scales, image.transposed)});
}

}  // namespace octet
