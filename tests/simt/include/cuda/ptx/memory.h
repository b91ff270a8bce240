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
// As late as the instruction may: the bytes arrive when the thread waits for their group.
inline void copy_async_16(void* shared, const void* global, bool valid) { simt::copy_later(shared, std::assume_aligned<16>(global), 16, valid); }
inline void copy_async_8(void* shared, const void* global, bool valid) { simt::copy_later(shared, std::assume_aligned<8>(global), 8, valid); }
inline void copy_async_commit() { simt::close_copies(); }
template <int Pending>
void copy_async_wait() { simt::finish_copies(Pending); }
}  // namespace octet::ptx
