#include "comm/reduce.h"

#include <algorithm>
#include <cstring>

#include "numerics/bf16.h"

namespace octet {
namespace {

template <class T>
void add(T* a, const T* b, int64_t count) {
  for (int64_t i = 0; i < count; ++i) a[i] += b[i];
}

template <class T>
void take_larger(T* a, const T* b, int64_t count) {
  for (int64_t i = 0; i < count; ++i) a[i] = a[i] != a[i] || a[i] >= b[i] ? a[i] : b[i];   // NaN b: no comparison holds
}

// In blocks that stay in the first-level cache, since target may be a source of a later addition.
template <class T, class Combine>
void by_blocks(T* target, const std::vector<const void*>& from, int64_t count, Combine combine) {
  constexpr int64_t kBlock = 8192 / sizeof(T);
  alignas(64) T sum[kBlock];
  for (int64_t first = 0; first < count; first += kBlock) {
    const int64_t n = std::min(kBlock, count - first);
    std::memcpy(sum, static_cast<const T*>(from[0]) + first, static_cast<size_t>(n) * sizeof(T));
    for (size_t k = 1; k < from.size(); ++k) combine(sum, static_cast<const T*>(from[k]) + first, n);
    std::memcpy(target + first, sum, static_cast<size_t>(n) * sizeof(T));
  }
}

template <class T>
void by_type(Reduce op, void* target, const std::vector<const void*>& from, int64_t count) {
  if (op == Reduce::max) {
    by_blocks(static_cast<T*>(target), from, count, take_larger<T>);
  } else if constexpr (std::is_integral_v<T>) {
    by_blocks(static_cast<std::make_unsigned_t<T>*>(target), from, count, add<std::make_unsigned_t<T>>);
  } else {
    by_blocks(static_cast<T*>(target), from, count, add<T>);
  }
}

// Added in FP32, rounded once.
void add_bf16(void* target, const std::vector<const void*>& from, int64_t count) {
  constexpr int64_t kBlock = 2048;
  alignas(64) float sum[kBlock];
  for (int64_t first = 0; first < count; first += kBlock) {
    const int64_t n = std::min(kBlock, count - first);
    for (size_t k = 0; k < from.size(); ++k) {
      const bf16* x = static_cast<const bf16*>(from[k]) + first;
      for (int64_t i = 0; i < n; ++i) sum[i] = k == 0 ? to_float(x[i]) : sum[i] + to_float(x[i]);
    }
    for (int64_t i = 0; i < n; ++i) static_cast<bf16*>(target)[first + i] = to_bf16(sum[i]);
  }
}

}  // namespace

void reduce_in_order(Reduce op, Dtype dtype, void* target, const std::vector<const void*>& from, int64_t count) {
  switch (dtype) {
    case Dtype::f32: return by_type<float>(op, target, from, count);
    case Dtype::f64: return by_type<double>(op, target, from, count);
    case Dtype::i64: return by_type<int64_t>(op, target, from, count);
    default: OCTET_CHECK(dtype == Dtype::bf16 && op == Reduce::sum, "no sums of {}", name(dtype));
  }
  add_bf16(target, from, count);
}

}  // namespace octet
