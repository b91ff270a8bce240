// A CUDA device as the operators use it: one stream, device memory for arenas, copies, recorded work. Construction takes the device; nothing else in src/ but src/cuda
// and the places that choose a device include this header.
//
// Errors: Error(device) with the runtime's words; a kernel's own failure surfaces at the next synchronize() or copy to the host.
#pragma once
#include <cstddef>
#include <array>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/arena.h"
#include "core/capability.h"

struct CUstream_st;
struct CUevent_st;
struct CUgraphExec_st;

namespace octet::cuda {

class GemmPlans;   // cuda/gemm/plans.h

struct DeviceInfo {
  int index = 0;
  std::string name, uuid;
  Capability capability;
  int multiprocessors = 0;
  size_t memory_bytes = 0;
  size_t shared_bytes = 0;   // that a CTA may ask for
  bool wgmma = false;        // the instructions of compute capability 9.0 alone (sm_90a), here and in this build
};

// Devices that this process can use and that octet's kernels were compiled for; none also without a driver. Makes no context.
std::vector<DeviceInfo> list_devices();

// Recorded work (a CUDA graph). Belongs to the device it was recorded on, and lives no longer.
class Graph {
 public:
  Graph() = default;
  explicit Graph(CUgraphExec_st* executable) : executable_(executable) {}
  explicit operator bool() const { return executable_ != nullptr; }

 private:
  friend class Device;
  struct Release {
    void operator()(CUgraphExec_st* executable) const;
  };
  std::unique_ptr<CUgraphExec_st, Release> executable_;
};

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
  // Pinned memory of the host under an address that kernels use too, over the bus.
  MemorySource host_memory();

  // In stream order. The bytes to copy in are taken before the call returns: they pass through pinned memory, so that neither the host nor the device waits
  // (a copy from pageable memory may do both), unless 16 copies of a MiB at most are on their way. The copy to the host waits for all work before it.
  void copy_in(void* to, const void* from, size_t bytes);
  void copy_out(void* to, const void* from, size_t bytes);
  void copy_inside(void* to, const void* from, size_t bytes);
  void synchronize();

  // What `work` submits to the stream is recorded instead of done; it must be kernels and copies inside the device that all ran once before (the first use of a
  // kernel or a product prepares it, which cannot be recorded). Pointers and other arguments are recorded as they are; memory is read when the graph runs.
  Graph record(const std::function<void()>& work);
  void run(const Graph& graph);

  GemmPlans& gemm_plans();

 private:
  DeviceInfo info_;
  CUstream_st* stream_ = nullptr;
  // Pinned memory in slots that take turns; a slot is written again when its copy is done.
  struct Slot {
    void* memory = nullptr;
    CUevent_st* copied = nullptr;
  };
  std::array<Slot, 16> slots_;
  size_t next_slot_ = 0;
  struct Release {
    void operator()(GemmPlans* p) const;
  };
  std::unique_ptr<GemmPlans, Release> gemm_plans_;
};

}  // namespace octet::cuda
