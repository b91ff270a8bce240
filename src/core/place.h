// Where a matrix lies in a larger one: ranks hold row or column ranges of a tensor, and random numbers are those of its elements in the whole.
#pragma once
#include <cstdint>

namespace octet {

struct MatrixPlace {
  int64_t first_row = 0, first_column = 0, columns = 0;   // columns: of the whole; 0: the matrix's own
};

}  // namespace octet
