// Whether two results of one operator agree: the rule by which tests/parity and the shadow of a run (ops/shadow.h) compare the GPU's with the CPU's.
#pragma once
#include <cstdint>

#include "core/tensor.h"

namespace octet {

// |got - want| <= ulps roundings of the result's type + relative times the larger of the largest finite |want| and `least`. Nothing given: the same bits.
struct Tolerance {
  double relative = 0, ulps = 0, least = 0;
  bool nan = false;   // NaN agrees with NaN whatever its bits, and where roundings are allowed Inf with Inf or NaN: their bits are the processor's own

  bool exact() const { return relative == 0 && ulps == 0; }
  Tolerance with_nan() const {
    Tolerance t = *this;
    t.nan = true;
    return t;
  }
};

struct Agreement {
  int64_t elements = 0, differing = 0;
  int64_t row = -1, col = -1;     // of the first that differs, and its values; codes of one-byte formats count as numbers
  double got = 0, want = 0;
  double units = 0;               // |got - want| of the first that differs as a multiple of what is allowed, Inf where nothing is
  double worst = 0;               // the largest such multiple of all elements, also of those that agree
};

// Matrices of one type and shape, in host memory; any ld.
Agreement compare(const MatrixView& got, const MatrixView& want, const Tolerance& tolerance);
Agreement compare(double got, double want, const Tolerance& tolerance);
// Of finite elements; 0 when there are none.
double largest_magnitude(const MatrixView& m);
// Element (row, col) as a number.
double element(const MatrixView& m, int64_t row, int64_t col);

}  // namespace octet
