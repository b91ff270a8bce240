// src/cuda/ptx/memory.h in C++.
#pragma once
#include <cuda_runtime.h>

#include <memory>

namespace octet::ptx {
inline uint4 load_16(const void* p) { uint4 v; memcpy(&v, std::assume_aligned<16>(p), 16); return v; }
inline void store_16(void* p, uint4 v) { memcpy(std::assume_aligned<16>(p), &v, 16); }
inline void store_8(void* p, uint2 v) { memcpy(std::assume_aligned<8>(p), &v, 8); }
template <class T>
T* dynamic_shared() { return reinterpret_cast<T*>(simt::dynamic_shared_memory()); }
inline void copy_async_16(void* shared, const void* global, bool valid) {
  if (valid) memcpy(shared, global, 16);
  else memset(shared, 0, 16);
}
inline void copy_async_commit() {}
template <int Pending>
void copy_async_wait() {}
}  // namespace octet::ptx
