// Numbers of a matrix's elements in the whole tensor that it was cut from (core/place.h), for random words: (first_row + r) * columns + first_column + c.
// Host and device.
#pragma once
#include "core/place.h"
#include "numerics/bits.h"

namespace octet {

struct ElementNumbers {
  int64_t first = 0;   // the number of element 0
  int64_t cols = 1;    // of a row here
  int64_t gap = 0;     // columns of the whole that are not here

  // Of the matrix's element e, row by row.
  OCTET_HD int64_t of(int64_t e) const { return first + e + (gap == 0 ? 0 : e / cols * gap); }
  // Whether eight elements from a multiple of 8 on always have neighbouring numbers from a multiple of 4 on: those of two whole blocks of random words.
  OCTET_HD bool in_blocks() const { return first % 4 == 0 && (gap == 0 || (gap % 4 == 0 && cols % 8 == 0)); }
};

inline ElementNumbers element_numbers(const MatrixPlace& place, int64_t cols) {
  const int64_t columns = place.columns == 0 ? cols : place.columns;
  return {place.first_row * columns + place.first_column, cols, columns - cols};
}

}  // namespace octet
