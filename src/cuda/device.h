// A CUDA device as the operators use it: one stream, device memory for arenas, copies. Construction takes the device; nothing else in src/ but src/cuda
// and the places that choose a device include this header.
//
// Errors: Error(device) with the runtime's words; a kernel's own failure surfaces at the next synchronize() or copy to the host.
#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/arena.h"
#include "core/capability.h"

struct CUstream_st;

namespace octet::cuda {

class GemmPlans;   // cuda/gemm/plans.h

struct DeviceInfo {
  int index = 0;
  std::string name, uuid;
  Capability capability;
  int multiprocessors = 0;
  size_t memory_bytes = 0;
};

// Devices that this process can use and that octet's kernels were compiled for; none also without a driver. Makes no context.
std::vector<DeviceInfo> list_devices();

class Device {
 public:
  explicit Device(int index);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const DeviceInfo& info() const { return info_; }
  std::pair<size_t, size_t> free_and_total() const;   // bytes, of all processes together
  CUstream_st* stream() const { return stream_; }
  // Device memory, filled in stream order. The device must outlive the arenas made of it.
  MemorySource memory();

  // In stream order; the copy to the host waits for all work before it.
  void copy_in(void* to, const void* from, size_t bytes);
  void copy_out(void* to, const void* from, size_t bytes);
  void copy_inside(void* to, const void* from, size_t bytes);
  void synchronize();

  GemmPlans& gemm_plans();

 private:
  DeviceInfo info_;
  CUstream_st* stream_ = nullptr;
  struct Release {
    void operator()(GemmPlans* p) const;
  };
  std::unique_ptr<GemmPlans, Release> gemm_plans_;
};

}  // namespace octet::cuda
