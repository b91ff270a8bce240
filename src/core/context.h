// Ctx: what every operator needs besides its operands. First argument of each operator, passed by reference.
#pragma once
#include <cstdint>

#include "core/arena.h"
#include "core/capability.h"
#include "core/step_key.h"
#include "core/thread_pool.h"

namespace octet {

class Shadow;   // ops/shadow.h
class Tracer;

namespace cuda {
class Device;   // cuda/device.h
}

enum class DeviceKind : uint8_t { cpu, cuda };

// How the CPU backend multiplies matrices.
enum class GemmMath : uint8_t {
  blas,   // single-threaded OpenBLAS calls on fixed tiles; the training mode
  fixed,  // own kernel, summed in index order with fma: the same bits on every x86-64-v3 machine (golden curves)
  exact,  // bit model of FP8 tensor-core accumulation (numerics/accumulate.h) for quantized operands, else as fixed; slow
};

// Which family of kernels computes attention on a GPU (cuda/attention/kernels.h).
enum class AttentionKernels : uint8_t { mma, wgmma };

class Ctx {
 public:
  // On the CPU.
  Ctx(ThreadPool& pool, Arena& scratch, GemmMath math) : math_(math), pool_(&pool), scratch_(&scratch) {}
  // On a GPU; scratch is device memory. The pool serves what stays on the host. device may be null for a dry run.
  Ctx(cuda::Device* device, ThreadPool& pool, Arena& scratch) : device_(DeviceKind::cuda), cuda_(device), pool_(&pool), scratch_(&scratch) {}

  DeviceKind device() const { return device_; }
  cuda::Device& cuda() {
    OCTET_CHECK(cuda_ != nullptr, "a dry run has no device{}", "");
    return *cuda_;
  }
  GemmMath gemm_math() const { return math_; }
  ThreadPool& pool() { return *pool_; }
  Arena& scratch() { return *scratch_; }
  // A dry run: operators allocate their scratch from the counting arena and touch no memory.
  bool planning() const { return scratch_->counting(); }

  // Of stochastic rounding. key: memory of the device; null where nothing is rounded stochastically.
  uint64_t seed = 0;
  const StepKey* key = nullptr;
  // Of the GPU, real or planned for: decides which products are native (recipe/hardware.h).
  Capability capability{9, 0};
  AttentionKernels attention = AttentionKernels::mma;
  // Where spans go (core/trace.h); null: nobody listens.
  Tracer* tracer = nullptr;
  // Operators are computed on the CPU too and compared; null: they are not. On a GPU only.
  Shadow* shadow = nullptr;

 private:
  DeviceKind device_ = DeviceKind::cpu;
  cuda::Device* cuda_ = nullptr;
  GemmMath math_ = GemmMath::blas;
  ThreadPool* pool_;
  Arena* scratch_;
};

}  // namespace octet
