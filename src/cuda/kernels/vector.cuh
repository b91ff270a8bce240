// Eight neighbouring elements of a row: 16-byte accesses where the row's start and length allow them, single ones at ragged ends.
#pragma once
#include "cuda/ptx/convert.h"
#include "cuda/ptx/memory.h"
#include "numerics/bf16.h"

namespace octet::cuda {

constexpr int vector_width = 8;

template <class T>
struct Vector;

template <>
struct Vector<bf16> {
  uint32_t words[4];
  __device__ __forceinline__ float at(int i) const { return __uint_as_float(i % 2 ? words[i / 2] & 0xFFFF0000u : words[i / 2] << 16); }
  __device__ __forceinline__ void set(int i, float x) {
    const uint32_t bits = ptx::pack_bf16(x, 0.0f) & 0xFFFFu;
    set_bits(i, static_cast<uint16_t>(bits));
  }
  __device__ __forceinline__ uint16_t bits(int i) const { return static_cast<uint16_t>(words[i / 2] >> (16 * (i % 2))); }
  __device__ __forceinline__ void set_bits(int i, uint16_t x) {
    words[i / 2] = i % 2 ? (words[i / 2] & 0xFFFFu) | static_cast<uint32_t>(x) << 16 : (words[i / 2] & 0xFFFF0000u) | x;
  }
};

template <>
struct Vector<float> {
  float values[vector_width];
  __device__ __forceinline__ float at(int i) const { return values[i]; }
  __device__ __forceinline__ void set(int i, float x) { values[i] = x; }
};

__device__ __forceinline__ bool is_aligned(const void* p) { return reinterpret_cast<uint64_t>(p) % 16 == 0; }

// Elements [c, c + 8) of a row of n; those beyond the end are 0.
template <class T>
__device__ __forceinline__ Vector<T> load(const T* row, int64_t c, int64_t n) {
  Vector<T> v{};
  const T* at = row + c;
  if (c + vector_width <= n && is_aligned(at)) {
    if constexpr (sizeof(T) == 2) {
      const uint4 x = ptx::load_16(at);
      v.words[0] = x.x, v.words[1] = x.y, v.words[2] = x.z, v.words[3] = x.w;
    } else {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint4 x = ptx::load_16(at + 4 * half);
        v.values[4 * half] = __uint_as_float(x.x), v.values[4 * half + 1] = __uint_as_float(x.y);
        v.values[4 * half + 2] = __uint_as_float(x.z), v.values[4 * half + 3] = __uint_as_float(x.w);
      }
    }
    return v;
  }
#pragma unroll
  for (int i = 0; i < vector_width; ++i) {
    if (c + i >= n) continue;
    if constexpr (sizeof(T) == 2) {
      v.set_bits(i, at[i].bits);
    } else {
      v.set(i, at[i]);
    }
  }
  return v;
}

template <class T>
__device__ __forceinline__ void store(T* row, int64_t c, int64_t n, const Vector<T>& v) {
  T* at = row + c;
  if (c + vector_width <= n && is_aligned(at)) {
    if constexpr (sizeof(T) == 2) {
      ptx::store_16(at, make_uint4(v.words[0], v.words[1], v.words[2], v.words[3]));
    } else {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        ptx::store_16(at + 4 * half, make_uint4(__float_as_uint(v.values[4 * half]), __float_as_uint(v.values[4 * half + 1]), __float_as_uint(v.values[4 * half + 2]),
                                                __float_as_uint(v.values[4 * half + 3])));
      }
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < vector_width; ++i) {
    if (c + i >= n) continue;
    if constexpr (sizeof(T) == 2) {
      at[i].bits = v.bits(i);
    } else {
      at[i] = v.at(i);
    }
  }
}

}  // namespace octet::cuda
