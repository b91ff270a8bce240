#include "core/agreement.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace octet {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

bool not_finite_alike(double got, double want, const Tolerance& t) {
  if (!t.nan || std::isfinite(got) || std::isfinite(want)) return false;
  return !t.exact() || (std::isnan(got) && std::isnan(want));
}

// unit: one rounding of the type; scale: what `relative` is a part of.
void add(Agreement& a, double got, double want, bool same_bits, const Tolerance& t, double unit, double scale, int64_t row, int64_t col) {
  ++a.elements;
  if (same_bits && (t.exact() || !std::isnan(got))) return;
  if (not_finite_alike(got, want, t)) return;
  const double allowed = t.ulps * unit * std::fabs(want) + t.relative * scale, error = std::fabs(got - want);
  const bool agrees = !t.exact() && std::isfinite(error) && error <= allowed;
  const double units = error == 0 && agrees ? 0 : allowed > 0 && std::isfinite(error) ? error / allowed : infinity;
  a.worst = std::max(a.worst, units);
  if (agrees) return;
  if (a.differing++ == 0) {
    a.row = row;
    a.col = col;
    a.got = got;
    a.want = want;
    a.units = units;
  }
}

const char* at(const MatrixView& m, int64_t row, int64_t col) { return static_cast<const char*>(m.data) + static_cast<size_t>(row * m.ld + col) * size_bytes(m.dtype); }

template <class T>
T load(const char* from) {
  T x;
  std::memcpy(&x, from, sizeof x);
  return x;
}

}  // namespace

double element(const MatrixView& m, int64_t row, int64_t col) {
  const char* from = at(m, row, col);
  switch (m.dtype) {
    case Dtype::f32: return load<float>(from);
    case Dtype::bf16: return to_float(load<bf16>(from));
    case Dtype::i32: return load<int32_t>(from);
    case Dtype::u16: return load<uint16_t>(from);
    default: return load<uint8_t>(from);
  }
}

double largest_magnitude(const MatrixView& m) {
  double largest = 0;
  for (int64_t r = 0; r < m.rows; ++r) {
    for (int64_t c = 0; c < m.cols; ++c) {
      const double x = std::fabs(element(m, r, c));
      if (x > largest && std::isfinite(x)) largest = x;
    }
  }
  return largest;
}

Agreement compare(const MatrixView& got, const MatrixView& want, const Tolerance& tolerance) {
  OCTET_CHECK(got.dtype == want.dtype && got.rows == want.rows && got.cols == want.cols, "{} {}x{} is compared with {} {}x{}", name(got.dtype), got.rows, got.cols, name(want.dtype),
              want.rows, want.cols);
  Agreement a;
  const double unit = got.dtype == Dtype::bf16 ? 0x1p-7 : 0x1p-23, scale = tolerance.exact() ? 0 : std::max(tolerance.least, largest_magnitude(want));
  const size_t width = size_bytes(got.dtype);
  for (int64_t r = 0; r < got.rows; ++r) {
    for (int64_t c = 0; c < got.cols; ++c) {
      add(a, element(got, r, c), element(want, r, c), std::memcmp(at(got, r, c), at(want, r, c), width) == 0, tolerance, unit, scale, r, c);
    }
  }
  return a;
}

Agreement compare(double got, double want, const Tolerance& tolerance) {
  Agreement a;
  add(a, got, want, got == want, tolerance, std::numeric_limits<double>::epsilon(), std::max(tolerance.least, std::isfinite(want) ? std::fabs(want) : 0), 0, 0);
  return a;
}

}  // namespace octet
