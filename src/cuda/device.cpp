#include "cuda/device.h"

#include <cuda_runtime.h>
#include <fmt/format.h>

#include "core/error.h"
#include "cuda/launch.h"
#include "recipe/hardware.h"

namespace octet::cuda {
namespace {

void* allocate(void*, size_t bytes) {
  void* memory = nullptr;
  const cudaError_t error = cudaMalloc(&memory, bytes);
  if (error == cudaErrorMemoryAllocation) {
    size_t free = 0, total = 0;
    cudaMemGetInfo(&free, &total);
    throw Error(ExitCode::device, fmt::format("{} bytes of device memory are not free ({} of {} are)", bytes, free, total), "memory plan",
                "use a smaller model, micro-batch or sequence, or recompute more");
  }
  check(error, "allocate device memory");
  return memory;
}
void release(void*, void* memory) { cudaFree(memory); }
void fill(void* user, void* memory, int byte, size_t bytes) { check(cudaMemsetAsync(memory, byte, bytes, static_cast<Device*>(user)->stream()), "fill device memory"); }

DeviceInfo describe(int index) {
  cudaDeviceProp p{};
  check(cudaGetDeviceProperties(&p, index), "ask for the device's properties");
  std::string uuid;
  for (const char c : p.uuid.bytes) uuid += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return {index, p.name, uuid, {p.major, p.minor}, p.multiProcessorCount, p.totalGlobalMem};
}

}  // namespace

void throw_cuda_error(const char* what, cudaError_t error) {
  throw Error(ExitCode::device, fmt::format("cannot {}: {} ({})", what, cudaGetErrorString(error), cudaGetErrorName(error)), "CUDA",
              "see the log for the step; run 'nvidia-smi' on this machine");
}

std::vector<DeviceInfo> list_devices() {
  int n = 0;
  if (cudaGetDeviceCount(&n) != cudaSuccess) n = 0;
  std::vector<DeviceInfo> devices;
  for (int i = 0; i < n; ++i) {
    DeviceInfo d = describe(i);
    if (compiled_for(OCTET_CUDA_ARCHS, d.capability)) devices.push_back(std::move(d));
  }
  return devices;
}

Device::Device(int index) {
  check(cudaSetDevice(index), "choose the device");
  info_ = describe(index);
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "make a stream");
}

std::pair<size_t, size_t> Device::free_and_total() const {
  size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "ask for free memory");
  return {free, total};
}

Device::~Device() {
  gemm_plans_.reset();
  if (stream_) cudaStreamDestroy(stream_);
}

MemorySource Device::memory() { return {this, allocate, release, fill}; }

void Device::copy_in(void* to, const void* from, size_t bytes) {
  if (bytes) check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_), "copy to the device");
}

void Device::copy_out(void* to, const void* from, size_t bytes) {
  if (bytes) check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_), "copy from the device");
  synchronize();
}

void Device::copy_inside(void* to, const void* from, size_t bytes) {
  if (bytes) check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_), "copy inside the device");
}

void Device::synchronize() { check(cudaStreamSynchronize(stream_), "finish the device's work"); }

}  // namespace octet::cuda
