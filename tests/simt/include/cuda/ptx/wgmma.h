// src/cuda/ptx/wgmma.h in C++: what the machine does with products is in simt/warpgroup.h. Products are exact in FP32 and summed in index order.
#pragma once
#include <cuda_runtime.h>

#include "cuda/ptx/matrix_descriptor.h"

namespace octet::ptx {

inline uint32_t wgmma_offset(const void* shared) { return static_cast<uint32_t>(static_cast<const std::byte*>(shared) - simt::dynamic_shared_memory()); }
inline uint64_t wgmma_rows(const void* shared) { return descriptor_of_rows(wgmma_offset(shared)); }
inline uint64_t wgmma_columns(const void* shared, uint32_t apart) { return descriptor_of_columns(wgmma_offset(shared), apart); }
inline void wgmma_fence() {}
inline void wgmma_commit() { simt::close_products(); }
template <int Pending>
void wgmma_wait() { simt::finish_products(Pending); }
template <int Registers>
void give_registers() {}
template <int Registers>
void take_registers() {}

template <size_t N>
void wgmma_bf16(float (&d)[N][4], uint64_t a, uint64_t b, bool accumulate) { simt::multiply_later({&d[0][0], 8 * static_cast<int>(N), nullptr, a, b, false, accumulate}); }
template <bool TransposedB, size_t N>
void wgmma_bf16(float (&d)[N][4], const uint32_t (&a)[4], uint64_t b, bool accumulate) { simt::multiply_later({&d[0][0], 8 * static_cast<int>(N), a, 0, b, TransposedB, accumulate}); }

}  // namespace octet::ptx
