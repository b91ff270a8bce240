// Barriers in shared memory (mbarrier, Hopper) and the copy engine's loads that complete on them; barriers of some warps. PTX ISA, "mbarrier", "cp.async.bulk.tensor", "bar".
#pragma once
#include <cstdint>

#include "cuda/tensor_map.h"

namespace octet::ptx {

// A phase ends when `arrivals` threads have arrived and all bytes they announced have come.
struct alignas(8) Barrier {
  uint64_t state;
};

__device__ __forceinline__ uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

// By one thread; others see it after barrier_init_fence of that thread and a __syncthreads.
__device__ __forceinline__ void barrier_init(Barrier& b, int arrivals) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&b)), "r"(arrivals) : "memory"); }
__device__ __forceinline__ void barrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void arrive(Barrier& b) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&b)) : "memory"); }
__device__ __forceinline__ void arrive_expecting(Barrier& b, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&b)), "r"(bytes) : "memory");
}
// Until the phase of this parity is over; phases count from 0, so that parity 1 of a new barrier is over.
__device__ __forceinline__ void wait(Barrier& b, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n}"
      ::"r"(shared_address(&b)), "r"(parity) : "memory");
}

// A box of the tensor at (x, y, z), x along its rows, to shared memory; zeros outside the tensor. Its bytes count as those of the whole box.
__device__ __forceinline__ void load_box(void* shared, const TensorMap& map, Barrier& b, int x, int y, int z) {
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(shared_address(shared)), "l"(&map), "r"(shared_address(&b)), "r"(x),
               "r"(y), "r"(z)
               : "memory");
}
// Contiguous bytes; addresses and `bytes` are multiples of 16.
__device__ __forceinline__ void load_bytes(void* shared, const void* global, uint32_t bytes, Barrier& b) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(shared)), "l"(global), "r"(bytes), "r"(shared_address(&b)) : "memory");
}
__device__ __forceinline__ void prefetch_map(const TensorMap& map) { asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory"); }

// Barrier `id`, 1 to 15 (0 is __syncthreads'), of `threads` threads, of which some wait and the others only arrive.
__device__ __forceinline__ void named_wait(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
__device__ __forceinline__ void named_arrive(int id, int threads) { asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory"); }

}  // namespace octet::ptx
