// Machine: the device a run computes on, as everything above the operators sees it: memory for arenas, bytes in and out, contexts for operators.
// With ops/dispatch.cpp the only place that knows both backends.
//
// On a GPU all work is in the order of one stream; synchronize(), read() and copy_out() wait for what came before them, nothing else does.
// Errors: Error(device) when there is no usable device, when memory is short, or when the device failed.
#pragma once
#include <array>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "core/context.h"
#include "recipe/hardware.h"
#include "recipe/qtensor.h"

struct CUstream_st;

namespace octet {

// The algorithm of each matrix product by its description, as cuBLASLt's opaque words: what a run stores so that it multiplies alike when it goes on.
using ProductChoices = std::map<std::string, std::array<uint64_t, 8>>;
struct ProductTiming {
  int timed = 0;
  int too_large = 0;   // for the memory that was lent: these take the library's first suggestion
};

// "cpu", "cuda" or "auto": a GPU where there is one that this program can use.
DeviceKind device_kind(const std::string& run_device);

// "mma" or "wgmma".
AttentionKernels attention_kernels(const std::string& run_attention);

class Machine {
 public:
  struct Options {
    DeviceKind kind = DeviceKind::cpu;
    int threads = 0;                      // of the host's pool; 0: all usable cores
    GemmMath math = GemmMath::blas;       // how the CPU multiplies
    bool plan_only = false;               // no device is taken: contexts are for dry runs over counting arenas
    int local_rank = 0;                   // ranks of one machine take its GPUs in turn
    AttentionKernels attention = AttentionKernels::mma;
  };
  explicit Machine(const Options& options);
  ~Machine();
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  DeviceKind kind() const { return options_.kind; }
  ImageLayout image_layout() const { return options_.kind == DeviceKind::cuda ? ImageLayout::gemm : ImageLayout::source; }
  ThreadPool& pool() { return pool_; }
  // Of the GPU; of a dry run: of the first GPU here, or 9.0.
  Capability capability() const { return capability_; }
  // Error(config) where the attention that was asked for does not run: on this GPU or, in a dry run, the first one here; with this head_dim; on activations of this type.
  void check_attention(int64_t head_dim, Dtype activations) const;
  std::string name() const;               // "CPU, 16 threads", "NVIDIA H200 (compute capability 9.0)"; of a dry run what it plans for
  // Of the GPU, as nvidia-smi prints it; empty on a CPU.
  std::string device_uuid() const;
  // What MFU is a share of, FLOP/s: the data sheet's dense BF16 figure of the GPU's generation, scaled by its multiprocessors; 0 on a CPU or an unknown GPU.
  double peak_flops() const;
  // Device memory in use now by everybody, and all there is; zeros on a CPU.
  struct MemoryUse {
    size_t used = 0, total = 0;
  };
  MemoryUse memory_use() const;
  // Device memory taken before the first arena: the CUDA context with the kernels' code (measured: docs/benchmarks/hopper.md) and the products' workspace.
  size_t overhead_bytes() const;

  // The machine must outlive its arenas. poison: see Arena.
  Arena arena(size_t bytes, bool poison = false);
  // The host's memory, which operators on the device read and write too, over the bus.
  Arena host_arena(size_t bytes);
  Ctx context(Arena& scratch);

  void copy_in(void* to, const void* from, size_t bytes);
  void copy_out(void* to, const void* from, size_t bytes);
  void synchronize();
  // The GPU's stream, for communication between GPUs; null on a CPU.
  CUstream_st* stream() const;
  // Work on a GPU, recorded to be done again (cuda/device.h says what may be recorded). Internal error on a CPU.
  using Recording = std::shared_ptr<void>;
  Recording record(const std::function<void()>& work);
  void run(const Recording& recording);
  // fill(view) writes a host view of the dense tensor `t`, whose content is replaced; use(view) reads one. Without a GPU the view is the tensor itself.
  void write(const Tensor& t, const std::function<void(const Tensor&)>& fill);
  void read(const Tensor& t, const std::function<void(const Tensor&)>& use);

  // cuBLASLt's algorithms by product. Every product made so far is timed once, unless the choice for it was given or it does not fit into `memory`, which is overwritten.
  // Nothing to choose on a CPU.
  ProductTiming tune_products(void* memory, size_t bytes);
  std::string product_library() const;    // "cuBLASLt 130100"; empty on a CPU
  ProductChoices product_choices() const;
  void choose_products(const ProductChoices& choices);

 private:
  struct Release {
    void operator()(cuda::Device* device) const;
  };
  Options options_;
  Capability capability_{9, 0};
  bool wgmma_ = true;   // as DeviceInfo has it
  ThreadPool pool_;
  std::unique_ptr<cuda::Device, Release> device_;
};

}  // namespace octet
