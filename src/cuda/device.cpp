#include "cuda/device.h"

#include <cuda_runtime.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "cuda/launch.h"
#include "recipe/hardware.h"

namespace octet::cuda {
namespace {

constexpr size_t slot_bytes = size_t{1} << 20;

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
void* allocate_pinned(void*, size_t bytes) {
  void* memory = nullptr;
  if (const cudaError_t error = cudaHostAlloc(&memory, bytes, cudaHostAllocDefault); error != cudaSuccess) {
    throw Error(ExitCode::device, fmt::format("cannot pin {} bytes of the host's memory: {}", bytes, cudaGetErrorString(error)), "optim.offload", "switch it off, or free host memory");
  }
  return memory;
}
void release_pinned(void*, void* memory) { cudaFreeHost(memory); }
void fill(void* user, void* memory, int byte, size_t bytes) { check(cudaMemsetAsync(memory, byte, bytes, static_cast<Device*>(user)->stream()), "fill device memory"); }

DeviceInfo describe(int index) {
  cudaDeviceProp p{};
  check(cudaGetDeviceProperties(&p, index), "ask for the device's properties");
  std::string uuid;
  for (const char c : p.uuid.bytes) uuid += fmt::format("{:02x}", static_cast<unsigned char>(c));
  const Capability capability{p.major, p.minor};
  const bool wgmma = capability == Capability{9, 0} && std::string_view(OCTET_CUDA_ARCHS).find("90a") != std::string_view::npos;
  return {index, p.name, uuid, capability, p.multiProcessorCount, p.totalGlobalMem, p.sharedMemPerBlockOptin, wgmma};
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

void Graph::Release::operator()(CUgraphExec_st* executable) const { cudaGraphExecDestroy(executable); }

Device::Device(int index) {
  check(cudaSetDevice(index), "choose the device");
  info_ = describe(index);
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "make a stream");
  for (Slot& s : slots_) {
    check(cudaHostAlloc(&s.memory, slot_bytes, cudaHostAllocDefault), "pin memory of the host for copies");
    check(cudaEventCreateWithFlags(&s.copied, cudaEventDisableTiming), "make an event");
  }
}

std::pair<size_t, size_t> Device::free_and_total() const {
  size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "ask for free memory");
  return {free, total};
}

Device::~Device() {
  gemm_plans_.reset();
  for (const Slot& s : slots_) {
    if (s.copied) cudaEventDestroy(s.copied);
    if (s.memory) cudaFreeHost(s.memory);
  }
  if (stream_) cudaStreamDestroy(stream_);
}

MemorySource Device::memory() { return {this, allocate, release, fill}; }
MemorySource Device::host_memory() { return {this, allocate_pinned, release_pinned, fill}; }

void Device::copy_in(void* to, const void* from, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    const size_t n = std::min(bytes - done, slot_bytes);
    const Slot& slot = slots_[next_slot_];
    next_slot_ = (next_slot_ + 1) % slots_.size();
    check(cudaEventSynchronize(slot.copied), "wait for an earlier copy");
    std::memcpy(slot.memory, static_cast<const char*>(from) + done, n);
    check(cudaMemcpyAsync(static_cast<char*>(to) + done, slot.memory, n, cudaMemcpyDefault, stream_), "copy to the device");
    check(cudaEventRecord(slot.copied, stream_), "note a copy");
    done += n;
  }
}

void Device::copy_out(void* to, const void* from, size_t bytes) {
  if (bytes) check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_), "copy from the device");
  synchronize();
}

void Device::copy_inside(void* to, const void* from, size_t bytes) {
  if (bytes) check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_), "copy inside the device");
}

Graph Device::record(const std::function<void()>& work) {
  check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "begin to record");
  cudaGraph_t graph = nullptr;
  try {
    work();
  } catch (...) {
    cudaStreamEndCapture(stream_, &graph);   // which fails for the same reason; what `work` threw says more
    if (graph) cudaGraphDestroy(graph);
    throw;
  }
  check(cudaStreamEndCapture(stream_, &graph), "end a recording");
  cudaGraphExec_t executable = nullptr;
  const cudaError_t error = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  if (error != cudaSuccess) {
    throw Error(ExitCode::device, fmt::format("cannot prepare a recorded micro-batch: {} ({})", cudaGetErrorString(error), cudaGetErrorName(error)), "run.cuda_graphs",
                "set it to false, or leave more device memory free");
  }
  return Graph(executable);
}

void Device::run(const Graph& graph) { check(cudaGraphLaunch(graph.executable_.get(), stream_), "run recorded work"); }

void Device::synchronize() { check(cudaStreamSynchronize(stream_), "finish the device's work"); }

}  // namespace octet::cuda
