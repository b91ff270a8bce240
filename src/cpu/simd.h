// Eight-lane FP32 vectors and the few reductions of the CPU backend. Sums run in eight lanes, then the lanes in order:
// the same bits whatever the compiler does. x86-64-v3 only; no intrinsics are needed at this level.
#pragma once
#include <cstdint>
#include <cstring>

#include "core/tensor.h"
#include "cpu/convert.h"
#include "numerics/exp.h"

namespace octet::cpu {

constexpr int64_t lanes = 8;
typedef float v8f __attribute__((vector_size(32)));
typedef int32_t v8i __attribute__((vector_size(32)));

inline v8f load8(const float* p) {
  v8f v;
  memcpy(&v, p, sizeof v);
  return v;
}
inline void store8(float* p, v8f v) { memcpy(p, &v, sizeof v); }
inline v8f splat(float x) { return v8f{x, x, x, x, x, x, x, x}; }
inline v8f max8(v8f a, v8f b) { return a > b ? a : b; }
inline float horizontal_sum(v8f v) { return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7])); }

inline float lane_sum(const float* x, int64_t n) {
  v8f acc{};
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) acc += load8(x + i);
  float tail = 0;
  for (; i < n; ++i) tail += x[i];
  return horizontal_sum(acc) + tail;
}

inline float lane_dot(const float* x, const float* y, int64_t n) {
  v8f acc{};
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) acc += load8(x + i) * load8(y + i);
  float tail = 0;
  for (; i < n; ++i) tail += x[i] * y[i];
  return horizontal_sum(acc) + tail;
}

inline float lane_max(const float* x, int64_t n, float lowest) {
  v8f acc = splat(lowest);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) acc = max8(load8(x + i), acc);
  float m = lowest;
  for (int l = 0; l < lanes; ++l) m = acc[l] > m ? acc[l] : m;
  for (; i < n; ++i) m = x[i] > m ? x[i] : m;
  return m;
}

// Row r of m as floats: the row itself for f32, else widened into tmp [m.cols].
inline const float* read_row(const MatrixView& m, int64_t r, float* tmp) {
  if (m.dtype == Dtype::f32) return m.row<float>(r);
  widen(m.row<bf16>(r), tmp, m.cols);
  return tmp;
}

// Where a row of floats may be composed before write_row: the row itself for f32, else tmp.
inline float* row_buffer(const MatrixView& m, int64_t r, float* tmp) { return m.dtype == Dtype::f32 ? m.row<float>(r) : tmp; }

// Rounds x [m.cols] into row r.
inline void write_row(const MatrixView& m, int64_t r, const float* x) {
  if (m.dtype == Dtype::f32) {
    if (m.row<float>(r) != x) memcpy(m.row<float>(r), x, static_cast<size_t>(m.cols) * sizeof(float));
  } else {
    narrow(x, m.row<bf16>(r), m.cols);
  }
}

}  // namespace octet::cpu
