// Shape of a dense row-major tensor, at most four axes, no allocation.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

namespace octet {

class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<int64_t> dims) {
    for (int64_t d : dims) dims_[rank_++] = d;
  }
  int rank() const { return rank_; }
  int64_t operator[](int axis) const { return dims_[static_cast<size_t>(axis)]; }
  // The same with another extent along one axis.
  Shape with(int axis, int64_t extent) const {
    Shape s = *this;
    s.dims_[static_cast<size_t>(axis)] = extent;
    return s;
  }
  int64_t elements() const {
    int64_t n = 1;
    for (int i = 0; i < rank_; ++i) n *= dims_[static_cast<size_t>(i)];
    return n;
  }
  // The matrix view every operator uses: all axes but the last folded together.
  int64_t rows() const {
    int64_t n = 1;
    for (int i = 0; i + 1 < rank_; ++i) n *= dims_[static_cast<size_t>(i)];
    return n;
  }
  int64_t cols() const { return rank_ == 0 ? 1 : dims_[static_cast<size_t>(rank_ - 1)]; }
  bool operator==(const Shape& o) const = default;

 private:
  std::array<int64_t, 4> dims_{};
  int rank_ = 0;
};

std::string to_string(const Shape& s);  // "[4, 128]"

}  // namespace octet
