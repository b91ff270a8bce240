// Tensor: a non-owning view of dense row-major memory. Memory belongs to an Arena (core/arena.h); a Tensor is passed by value.
// A null data pointer means "not wanted" for an optional output and "planning" while an arena only counts.
#pragma once
#include "core/check.h"
#include "core/dtype.h"
#include "core/shape.h"
#include "numerics/bf16.h"

namespace octet {

template <class T>
struct DtypeOf;
template <> struct DtypeOf<float> { static constexpr Dtype value = Dtype::f32; };
template <> struct DtypeOf<bf16> { static constexpr Dtype value = Dtype::bf16; };
template <> struct DtypeOf<int32_t> { static constexpr Dtype value = Dtype::i32; };
template <> struct DtypeOf<uint16_t> { static constexpr Dtype value = Dtype::u16; };

struct Tensor {
  void* data = nullptr;
  Dtype dtype = Dtype::f32;
  Shape shape;

  explicit operator bool() const { return data != nullptr; }
  int64_t elements() const { return shape.elements(); }
  int64_t rows() const { return shape.rows(); }
  int64_t cols() const { return shape.cols(); }
  size_t bytes() const { return static_cast<size_t>(elements()) * size_bytes(dtype); }

  // Typed access; float, bf16, int32_t and uint16_t check the dtype, uint8_t reads the codes of any one-byte format.
  template <class T>
  T* as() const {
    if constexpr (sizeof(T) == 1) {
      OCTET_CHECK(size_bytes(dtype) == 1, "tensor holds {}, byte codes were asked for", name(dtype));
    } else {
      OCTET_CHECK(dtype == DtypeOf<T>::value, "tensor holds {}, {} was asked for", name(dtype), name(DtypeOf<T>::value));
    }
    return static_cast<T*>(data);
  }

  // Rows [begin, begin + count) of the matrix view, as a two-axis tensor.
  Tensor slice_rows(int64_t begin, int64_t count) const {
    OCTET_CHECK(begin >= 0 && count >= 0 && begin + count <= rows(), "rows [{}, {}) of {}", begin, begin + count, to_string(shape));
    Tensor t = *this;
    if (data) t.data = static_cast<char*>(data) + static_cast<size_t>(begin * cols()) * size_bytes(dtype);
    t.shape = Shape{count, cols()};
    return t;
  }
};

// A matrix whose rows may lie apart: a column range of a wider matrix (q inside qkv), or a whole tensor.
struct MatrixView {
  void* data = nullptr;
  Dtype dtype = Dtype::f32;
  int64_t rows = 0, cols = 0;
  int64_t ld = 0;  // elements between the starts of consecutive rows

  MatrixView() = default;
  MatrixView(const Tensor& t) : data(t.data), dtype(t.dtype), rows(t.rows()), cols(t.cols()), ld(t.cols()) {}  // NOLINT: meant to convert

  explicit operator bool() const { return data != nullptr; }
  int64_t elements() const { return rows * cols; }
  MatrixView columns(int64_t begin, int64_t count) const {
    OCTET_CHECK(begin >= 0 && count >= 0 && begin + count <= cols, "columns [{}, {}) of {}", begin, begin + count, cols);
    MatrixView m = *this;
    if (data) m.data = static_cast<char*>(data) + static_cast<size_t>(begin) * size_bytes(dtype);
    m.cols = count;
    return m;
  }
  template <class T>
  T* row(int64_t r) const {
    if constexpr (sizeof(T) == 1) {
      OCTET_CHECK(size_bytes(dtype) == 1, "matrix holds {}, byte codes were asked for", name(dtype));
    } else {
      OCTET_CHECK(dtype == DtypeOf<T>::value, "matrix holds {}, {} was asked for", name(dtype), name(DtypeOf<T>::value));
    }
    return static_cast<T*>(data) + r * ld;
  }
};

}  // namespace octet
