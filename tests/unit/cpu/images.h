// Quantized images for the operator tests: owned memory, and the expected codes and scales from the scalar numerics.
#pragma once
#include <limits>

#include "numerics/formats.h"
#include "numerics/hadamard.h"
#include "numerics/scale.h"
#include "ops/quantize.h"
#include "support.h"

namespace cpu_test {

// Codes and scales of one image of a [rows, cols] matrix.
struct Image {
  QuantSpec spec;
  bool column = false;
  Buffer data, scale_inv;

  Image() = default;
  Image(const QuantSpec& s, int64_t rows, int64_t cols, bool column_) : spec(s), column(column_) {
    Arena counting;
    const Operand o = alloc_image(counting, s, rows, cols, column_);
    data = Buffer(s.format, {rows, cols}, 0xAA);
    scale_inv = Buffer(Dtype::f32, o.scale_inv.shape, 0xAA);
  }
  Operand operand() {
    Operand o;
    o.data = data.tensor();
    o.scale_inv = scale_inv.tensor();
    o.transposed = column;
    o.block_rows = column ? spec.block_cols : spec.block_rows;
    o.block_cols = column ? spec.block_rows : spec.block_cols;
    return o;
  }
  // The value element (r, c) of the stored matrix stands for.
  double value(int64_t r, int64_t c) {
    const Operand o = operand();
    const int64_t br = o.block_rows ? r / o.block_rows : 0, bc = o.block_cols ? c / o.block_cols : 0;
    return static_cast<double>(decode(spec.format, data.code(r * data.cols() + c))) * scale_inv.at(br * scale_inv.cols() + bc);
  }
};

inline Image quantized(Ctx& ctx, const MatrixView& x, const QuantSpec& spec, bool column, const QuantTarget& target = {}) {
  Image image(spec, x.rows, x.cols, column);
  QuantizedOut out;
  (column ? out.col_spec : out.row_spec) = spec;
  (column ? out.col : out.row) = image.operand();
  out.target = target;
  ops::quantize(ctx, x, out);
  return image;
}

inline float scale_of(const QuantSpec& s, float amax, float tensor_amax, float delayed, float& inverse) {
  if (s.scale == ScaleKind::ue4m3) {
    const float largest = format_info(s.format).max_finite, tensor = two_level_tensor_scale(tensor_amax, largest, s.amax_epsilon);
    const uint8_t code = two_level_block_code(std::max(amax, s.amax_epsilon), largest, tensor);
    inverse = two_level_scale_inv(code, tensor);
    return two_level_multiplier(code, tensor);
  }
  if (s.scaling == Scaling::delayed) {
    inverse = 1.0f / delayed;
    return delayed;
  }
  if (s.scale == ScaleKind::e8m0) {
    const uint8_t code = mx_scale_code(std::max(amax, s.amax_epsilon), s.format);
    inverse = e8m0_decode(code);
    return e8m0_reciprocal(code);
  }
  const float scale =
      scale_from_amax(amax, format_info(s.format).max_finite, s.scale == ScaleKind::pow2, s.amax_epsilon, s.overflow_scale, s.fp64_divide);
  inverse = 1.0f / scale;
  return scale;
}

// What is quantized: x, or x transformed along the contraction.
inline Buffer transformed(const Buffer& x, int64_t begin, int64_t rows, int64_t cols, bool hadamard, bool column) {
  Buffer y(Dtype::f32, {rows, cols});
  const int64_t extent = column ? rows : cols;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      const int64_t at = column ? r : c, group = at / 16 * 16, i = at % 16;
      const auto element = [&](int64_t k) { return x.f((column ? k : r) * x.cols() + begin + (column ? c : k)); };
      if (!hadamard || group + 16 > extent) {
        y.set(r * cols + c, element(at));
        continue;
      }
      float v[16];
      for (int64_t k = 0; k < 16; ++k) v[k] = element(group + k);
      hadamard16(v);
      y.set(r * cols + c, v[i]);
    }
  }
  return y;
}

// Block by block, element by element. x: [rows, width], of which columns [begin, begin + cols) are quantized.
inline Image expected_image(const Buffer& given, int64_t first_column, int64_t rows, int64_t cols, const QuantSpec& spec, bool column, float delayed = 1.0f) {
  Image image(spec, rows, cols, column);
  const Buffer x = transformed(given, first_column, rows, cols, spec.hadamard, column);
  const int64_t begin = 0;
  float tensor_amax = 0;
  for (int64_t i = 0; i < x.elements(); ++i) tensor_amax = std::isfinite(x.f(i)) ? std::max(tensor_amax, std::fabs(x.f(i))) : std::numeric_limits<float>::infinity();
  const Operand o = image.operand();
  const int64_t br = o.block_rows ? o.block_rows : std::max<int64_t>(rows, 1), bc = o.block_cols ? o.block_cols : std::max<int64_t>(cols, 1);
  for (int64_t i = 0; i < image.scale_inv.shape()[0]; ++i) {
    for (int64_t j = 0; j < image.scale_inv.shape()[1]; ++j) {
      const int64_t r1 = std::min(rows, (i + 1) * br), c1 = std::min(cols, (j + 1) * bc);
      float amax = 0;
      for (int64_t r = i * br; r < r1; ++r) {
        for (int64_t c = j * bc; c < c1; ++c) {
          const float a = std::fabs(x.f(r * x.cols() + begin + c));
          amax = std::isfinite(a) ? std::max(amax, a) : std::numeric_limits<float>::infinity();
        }
      }
      float inverse = 0;
      const float scale = scale_of(spec, amax, tensor_amax, delayed, inverse);
      image.scale_inv.set(i * image.scale_inv.cols() + j, inverse);
      for (int64_t r = i * br; r < r1; ++r) {
        for (int64_t c = j * bc; c < c1; ++c) o.data.row<uint8_t>(r)[c] = encode(spec.format, x.f(r * x.cols() + begin + c) * scale);
      }
    }
  }
  return image;
}

}  // namespace cpu_test
