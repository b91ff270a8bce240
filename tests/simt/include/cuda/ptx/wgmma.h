// src/cuda/ptx/wgmma.h in C++: what the machine does with products is in simt/warpgroup.h. Products are exact in FP32 and summed in index order.
#pragma once
#include <cuda_runtime.h>

namespace octet::ptx {

inline uint64_t wgmma_offset(const void* shared) { return static_cast<uint64_t>(static_cast<const std::byte*>(shared) - simt::dynamic_shared_memory()); }
inline uint64_t wgmma_rows(const void* shared) { return wgmma_offset(shared) >> 4 | uint64_t{1} << 16 | uint64_t{1024 >> 4} << 32 | uint64_t{1} << 62; }
inline uint64_t wgmma_columns(const void* shared, uint32_t apart) { return wgmma_offset(shared) >> 4 | static_cast<uint64_t>(apart >> 4) << 16 | uint64_t{1024 >> 4} << 32 | uint64_t{1} << 62; }
inline void wgmma_fence() {}
inline void wgmma_commit() { simt::close_products(); }
template <int Pending>
void wgmma_wait() { simt::finish_products(Pending); }
template <int Registers>
void give_registers() {}
template <int Registers>
void take_registers() {}

template <bool TransposedB = false, size_t Registers>
void wgmma_bf16(float (&d)[Registers], uint64_t a, uint64_t b, bool accumulate) { simt::multiply_later({d, 2 * static_cast<int>(Registers), nullptr, a, b, TransposedB, accumulate}); }
template <bool TransposedB = false, size_t Registers>
void wgmma_bf16(float (&d)[Registers], const uint32_t (&a)[4], uint64_t b, bool accumulate) { simt::multiply_later({d, 2 * static_cast<int>(Registers), a, 0, b, TransposedB, accumulate}); }

}  // namespace octet::ptx
