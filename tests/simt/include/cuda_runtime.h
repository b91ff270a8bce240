// The part of the CUDA runtime and of the device language that src/cuda uses, on the host: tests/simt/simt.h.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <tuple>
#include <type_traits>
#include <utility>

#include "simt.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
#define __shared__ static thread_local

namespace simt {
template <Index3 Thread::*Which, unsigned Index3::*Axis>
struct Component {
  operator unsigned() const { return (thread().*Which).*Axis; }
};
template <Index3 Thread::*Which>
struct Builtin {
  Component<Which, &Index3::x> x;
  Component<Which, &Index3::y> y;
  Component<Which, &Index3::z> z;
};
}  // namespace simt
inline constexpr simt::Builtin<&simt::Thread::thread_index> threadIdx{};
inline constexpr simt::Builtin<&simt::Thread::block_index> blockIdx{};
inline constexpr simt::Builtin<&simt::Thread::block_dim> blockDim{};
inline constexpr simt::Builtin<&simt::Thread::grid_dim> gridDim{};

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

// ---- device functions
inline void __syncthreads() { simt::block_barrier(); }
inline void __syncwarp(unsigned = 0xFFFFFFFFu) { simt::warp_barrier(); }
template <class T>
T __shfl_sync(unsigned, T v, int source) {
  uint64_t bits = 0;
  memcpy(&bits, &v, sizeof v);
  bits = simt::exchange(bits, source);
  memcpy(&v, &bits, sizeof v);
  return v;
}
template <class T>
T __shfl_xor_sync(unsigned mask, T v, int lanes) { return __shfl_sync(mask, v, simt::lane() ^ lanes); }
inline unsigned __ballot_sync(unsigned mask, bool predicate) {
  unsigned votes = 0;
  for (int l = 0; l < 32; ++l) votes |= (__shfl_sync(mask, predicate ? 1u : 0u, l) & 1u) << l;
  return votes;
}
[[noreturn]] inline void __trap() { throw std::runtime_error("simt: trap"); }
inline float __uint_as_float(unsigned u) { float f; memcpy(&f, &u, 4); return f; }
inline unsigned __float_as_uint(float f) { unsigned u; memcpy(&u, &f, 4); return u; }
template <class T>
T atomicMax(T* at, T v) { const T old = *at; *at = std::max(old, v); return old; }
template <class T>
T atomicAdd(T* at, T v) { const T old = *at; *at = old + v; return old; }
template <class T>
T atomicOr(T* at, T v) { const T old = *at; *at = old | v; return old; }
using std::max;
using std::min;

// ---- host functions
enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorMemoryAllocation = 2, cudaErrorInvalidConfiguration = 9, cudaErrorLaunchFailure = 719, cudaErrorStreamCaptureUnsupported = 900 };
inline const char* cudaGetErrorString(cudaError_t e) { return e == cudaSuccess ? "no error" : "an error of the emulated runtime"; }
inline const char* cudaGetErrorName(cudaError_t e) { return e == cudaSuccess ? "cudaSuccess" : "cudaError"; }
using cudaStream_t = CUstream_st*;
using cudaEvent_t = struct CUevent_st*;
using cudaGraph_t = struct CUgraph_st*;
using cudaGraphExec_t = struct CUgraphExec_st*;
enum cudaMemcpyKind { cudaMemcpyHostToHost, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice, cudaMemcpyDefault };
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  simt::submit(stream, [=] { if (bytes) memmove(to, from, bytes); });
  return cudaSuccess;
}
inline cudaError_t cudaMemsetAsync(void* at, int value, size_t bytes, cudaStream_t stream) {
  simt::submit(stream, [=] { if (bytes) memset(at, value, bytes); });
  return cudaSuccess;
}
// Device memory is host memory.
inline cudaError_t cudaMalloc(void** p, size_t bytes) { return (*p = std::aligned_alloc(256, (bytes + 255) / 256 * 256)) ? cudaSuccess : cudaErrorMemoryAllocation; }
inline cudaError_t cudaFree(void* p) {
  std::free(p);
  return cudaSuccess;
}
inline cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *free = *total = size_t{1} << 34;
  return cudaSuccess;
}
struct cudaUUID_t {
  char bytes[16];
};
struct cudaDeviceProp {
  char name[256];
  cudaUUID_t uuid;
  int major, minor, multiProcessorCount;
  size_t totalGlobalMem, sharedMemPerBlockOptin;
};
inline cudaError_t cudaGetDeviceCount(int* n) { *n = 1; return cudaSuccess; }
inline cudaError_t cudaSetDevice(int index) { return index == 0 ? cudaSuccess : cudaErrorInvalidValue; }
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int) {
  *p = {"SIMT on the host", {}, 9, 0, 4, size_t{1} << 34, 232448};
  return cudaSuccess;
}
enum { cudaStreamNonBlocking = 1 };
inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* s, unsigned) { *s = simt::make_stream(); return cudaSuccess; }
inline cudaError_t cudaStreamDestroy(cudaStream_t s) { simt::destroy(s); return cudaSuccess; }
// A stream that records cannot be waited for, as on a device.
inline cudaError_t cudaStreamSynchronize(cudaStream_t s) { return simt::recording(s) ? cudaErrorStreamCaptureUnsupported : cudaSuccess; }
enum cudaStreamCaptureMode { cudaStreamCaptureModeThreadLocal = 1 };
inline cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode) { simt::begin_recording(s); return cudaSuccess; }
inline cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t* graph) { *graph = simt::end_recording(s); return cudaSuccess; }
inline cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) { *executable = simt::instantiate(graph); return cudaSuccess; }
inline cudaError_t cudaGraphDestroy(cudaGraph_t graph) { simt::destroy(graph); return cudaSuccess; }
inline cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) { simt::destroy(executable); return cudaSuccess; }
inline cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t) { simt::launch(executable); return cudaSuccess; }
enum { cudaHostAllocDefault = 0, cudaEventDisableTiming = 2 };
inline cudaError_t cudaHostAlloc(void** p, size_t bytes, unsigned) { return cudaMalloc(p, bytes); }
inline cudaError_t cudaFreeHost(void* p) { return cudaFree(p); }
inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned) { *e = nullptr; return cudaSuccess; }
inline cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
inline cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
template <class K>
cudaError_t cudaFuncSetAttribute(K*, cudaFuncAttribute, int) { return cudaSuccess; }

struct cudaLaunchAttribute {};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
  cudaLaunchAttribute* attrs = nullptr;
  unsigned numAttrs = 0;
};
template <class... P, class... A>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* c, void (*kernel)(P...), A&&... arguments) {
  const dim3 g = c->gridDim, b = c->blockDim;
  const unsigned threads = b.x * b.y * b.z;
  if (threads == 0 || threads > 1024 || g.x == 0 || g.y == 0 || g.y > 65535 || g.z == 0 || g.z > 65535 || c->dynamicSmemBytes > 232448) return cudaErrorInvalidConfiguration;
  std::tuple<std::decay_t<P>...> copies(std::forward<A>(arguments)...);
  try {
    simt::submit(c->stream, [=, shared = c->dynamicSmemBytes] {
      simt::run({g.x, g.y, g.z}, {b.x, b.y, b.z}, shared, [&] { std::apply(kernel, copies); });
    });
  } catch (const std::exception& error) {
    fprintf(stderr, "%s\n", error.what());
    return cudaErrorLaunchFailure;
  }
  return cudaSuccess;
}
