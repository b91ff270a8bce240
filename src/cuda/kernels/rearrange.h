// Kernels that move elements of a matrix and change none. Pointers are device memory; every launch is asynchronous on `stream`.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

namespace octet::cuda {

// to[c][r] = from[r][c]. ld: elements between the starts of rows.
struct Transposition {
  bool wide;          // elements of 4 bytes, a few (scales), instead of one byte (codes)
  const void* from;   // [rows, cols]
  void* to;           // [cols, rows]
  int64_t rows, cols, from_ld, to_ld;
};
void launch_transpose(cudaStream_t stream, const Transposition& p);

// Column range p of whole [rows, parts * width] = rows [p rows, (p + 1) rows) of from [parts * rows, width]. In bytes; all of it is less than 4 GiB.
struct ColumnsOfParts {
  const void* from;
  void* whole;
  int64_t rows, parts, width, from_ld, whole_ld;
};
void launch_join_columns(cudaStream_t stream, const ColumnsOfParts& p);

}  // namespace octet::cuda
