// Kernel launches: cudaLaunchKernelEx with its error turned into octet::Error.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>
#include <utility>

namespace octet::cuda {

// Throws Error(device): what failed, the runtime's words, what to do.
[[noreturn]] void throw_cuda_error(const char* what, cudaError_t error);

inline void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) throw_cuda_error(what, error);
}

// Arguments are converted to the kernel's parameter types. Errors of the kernel itself surface at the next synchronization.
template <class... P, class... A>
void launch(const char* what, cudaStream_t stream, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes, A&&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  // What a kernel must be allowed: more than 48 KiB, static shared memory included, of which kernels here have at most a few KiB.
  if (shared_bytes > 40 * 1024) check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes)), what);
  check(cudaLaunchKernelEx(&config, kernel, static_cast<P>(std::forward<A>(arguments))...), what);
}

inline unsigned blocks_for(int64_t n, int64_t each) { return static_cast<unsigned>((n + each - 1) / each); }

}  // namespace octet::cuda
