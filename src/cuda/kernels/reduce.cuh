// Reductions over warps and blocks in a fixed order.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

namespace octet::cuda {

constexpr unsigned all_lanes = 0xFFFFFFFFu;

template <class T>
__device__ __forceinline__ T warp_sum(T v) {
#pragma unroll
  for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(all_lanes, v, o);
  return v;
}
template <class T>
__device__ __forceinline__ T warp_max(T v) {
#pragma unroll
  for (int o = 16; o; o >>= 1) {
    const T other = __shfl_xor_sync(all_lanes, v, o);
    v = other > v ? other : v;
  }
  return v;
}

// Sum over a block of Threads (a multiple of 32): the warps' sums, then those in warp order. Every thread gets it. Ends with a barrier of its own, so
// that it may be called again at once.
template <int Threads, class T>
__device__ __forceinline__ T block_sum(T v) {
  __shared__ T parts[Threads / 32];
  v = warp_sum(v);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = v;
  __syncthreads();
  T total = parts[0];
#pragma unroll
  for (int w = 1; w < Threads / 32; ++w) total += parts[w];
  __syncthreads();
  return total;
}
template <int Threads, class T>
__device__ __forceinline__ T block_max(T v) {
  __shared__ T parts[Threads / 32];
  v = warp_max(v);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = v;
  __syncthreads();
  T best = parts[0];
#pragma unroll
  for (int w = 1; w < Threads / 32; ++w) best = parts[w] > best ? parts[w] : best;
  __syncthreads();
  return best;
}

}  // namespace octet::cuda
