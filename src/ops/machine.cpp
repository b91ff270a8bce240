#include "ops/machine.h"

#include <fmt/format.h>

#include <cstring>
#include <vector>

#include "recipe/hardware.h"

#ifdef OCTET_HAVE_CUDA
#include "cuda/device.h"
#include "cuda/gemm/plans.h"
#endif

namespace octet {
namespace {

#ifndef OCTET_HAVE_CUDA
[[noreturn]] void no_cuda() {
  throw Error(ExitCode::config, "\"cuda\", but this octet was built without CUDA", "run.device", "set it to \"cpu\" or \"auto\", or build with the CUDA toolkit (scripts/build.sh -DOCTET_CUDA=ON)");
}
#endif

}  // namespace

AttentionKernels attention_kernels(const std::string& run_attention) { return run_attention == "wgmma" ? AttentionKernels::wgmma : AttentionKernels::mma; }

#ifdef OCTET_HAVE_CUDA

void Machine::Release::operator()(cuda::Device* device) const { delete device; }

DeviceKind device_kind(const std::string& run_device) {
  if (run_device == "cuda") return DeviceKind::cuda;
  return run_device == "auto" && !cuda::list_devices().empty() ? DeviceKind::cuda : DeviceKind::cpu;
}

Machine::Machine(const Options& options) : options_(options), pool_(options.threads) {
  if (options.kind != DeviceKind::cuda) return;
  const std::vector<cuda::DeviceInfo> present = cuda::list_devices();
  const auto place = present.empty() ? size_t{0} : static_cast<size_t>(options.local_rank) % present.size();
  if (!present.empty()) {
    capability_ = present[place].capability;
    wgmma_ = present[place].wgmma;
  }
  if (options.plan_only) return;
  if (present.empty()) throw Error(ExitCode::device, "\"cuda\", but this process has no GPU that it can use", "run.device", "set it to \"cpu\" or \"auto\"; octet doctor says why");
  device_.reset(new cuda::Device(present[place].index));
}

void Machine::check_attention(int64_t head_dim, Dtype activations) const {
  if (kind() == DeviceKind::cpu || options_.attention != AttentionKernels::wgmma) return;
  const auto refuse = [](const std::string& why) { throw Error(ExitCode::config, "\"wgmma\", but " + why, "run.attention", "set it to \"mma\""); };
  if (!wgmma_) refuse(fmt::format("{} is no GPU of compute capability 9.0, or octet was not compiled for 90a", name()));
  if (head_dim != 64 && head_dim != 128) refuse(fmt::format("model.head_dim is {}, and these kernels serve 64 and 128", head_dim));
  if (activations != Dtype::bf16) refuse("this recipe computes in FP32, and these kernels serve BF16");
}

std::string Machine::name() const {
  if (kind() == DeviceKind::cpu) return fmt::format("CPU, {} threads", pool_.threads());
  if (!device_) return fmt::format("a GPU of compute capability {}", octet::name(capability_));
  const cuda::DeviceInfo& d = device_->info();
  return fmt::format("{} (compute capability {})", d.name, octet::name(d.capability));
}

CUstream_st* Machine::stream() const { return device_ ? device_->stream() : nullptr; }

std::string Machine::device_uuid() const { return device_ ? device_->info().uuid : std::string(); }

double Machine::peak_flops() const {
  // NVIDIA H100 data sheet (SXM): 989.4 dense BF16 TFLOP/s with 132 multiprocessors; A100: 312 with 108; B200: 2250 with 148.
  if (!device_) return 0;
  const cuda::DeviceInfo& d = device_->info();
  const double n = d.multiprocessors;
  const Capability c = d.capability;
  return c.major == 9 ? 989.4e12 * n / 132 : c == Capability{8, 0} ? 312e12 * n / 108 : c.major == 10 ? 2250e12 * n / 148 : 0;
}

Machine::MemoryUse Machine::memory_use() const {
  if (!device_) return {};
  const auto [free, total] = device_->free_and_total();
  return {total - free, total};
}

size_t Machine::overhead_bytes() const {
  constexpr size_t context_bytes = size_t{580} << 20;
  return kind() == DeviceKind::cuda ? context_bytes + cuda::GemmPlans::workspace_bytes : 0;
}

Arena Machine::arena(size_t bytes, bool poison) { return device_ ? Arena(bytes, device_->memory(), poison) : Arena(bytes, poison); }

Arena Machine::host_arena(size_t bytes) { return device_ ? Arena(bytes, device_->host_memory(), false) : Arena(bytes); }

Ctx Machine::context(Arena& scratch) {
  if (kind() == DeviceKind::cpu) return Ctx(pool_, scratch, options_.math);
  Ctx ctx(device_.get(), pool_, scratch);
  ctx.capability = capability_;
  ctx.attention = options_.attention;
  return ctx;
}

void Machine::copy_in(void* to, const void* from, size_t bytes) {
  if (device_) return device_->copy_in(to, from, bytes);
  std::memcpy(to, from, bytes);
}

void Machine::copy_out(void* to, const void* from, size_t bytes) {
  if (device_) return device_->copy_out(to, from, bytes);
  std::memcpy(to, from, bytes);
}

void Machine::synchronize() {
  if (device_) device_->synchronize();
}

Machine::Recording Machine::record(const std::function<void()>& work) {
  OCTET_CHECK(device_ != nullptr, "recorded work needs a GPU{}", "");
  return std::make_shared<cuda::Graph>(device_->record(work));
}
void Machine::run(const Recording& recording) { device_->run(*static_cast<const cuda::Graph*>(recording.get())); }

ProductTiming Machine::tune_products(void* memory, size_t bytes) {
  if (!device_) return {};
  const auto [timed, too_large] = device_->gemm_plans().tune(memory, bytes);
  return {timed, too_large};
}
std::string Machine::product_library() const { return device_ ? fmt::format("cuBLASLt {}", cuda::GemmPlans::library_version()) : std::string(); }
ProductChoices Machine::product_choices() const { return device_ ? device_->gemm_plans().choices() : ProductChoices(); }
void Machine::choose_products(const ProductChoices& choices) {
  if (device_) device_->gemm_plans().choose(choices);
}

#else

void Machine::Release::operator()(cuda::Device*) const {}

DeviceKind device_kind(const std::string& run_device) {
  if (run_device == "cuda") no_cuda();
  return DeviceKind::cpu;
}

Machine::Machine(const Options& options) : options_(options), pool_(options.threads) {
  if (options.kind == DeviceKind::cuda) no_cuda();
}

std::string Machine::name() const { return fmt::format("CPU, {} threads", pool_.threads()); }
std::string Machine::device_uuid() const { return {}; }
CUstream_st* Machine::stream() const { return nullptr; }
void Machine::check_attention(int64_t, Dtype) const {}
double Machine::peak_flops() const { return 0; }
Machine::MemoryUse Machine::memory_use() const { return {}; }
size_t Machine::overhead_bytes() const { return 0; }
Arena Machine::arena(size_t bytes, bool poison) { return Arena(bytes, poison); }
Arena Machine::host_arena(size_t bytes) { return Arena(bytes); }
Ctx Machine::context(Arena& scratch) { return Ctx(pool_, scratch, options_.math); }
void Machine::copy_in(void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); }
void Machine::copy_out(void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); }
void Machine::synchronize() {}
Machine::Recording Machine::record(const std::function<void()>&) { OCTET_CHECK(false, "recorded work needs a GPU{}", ""); }
void Machine::run(const Recording&) {}
ProductTiming Machine::tune_products(void*, size_t) { return {}; }
std::string Machine::product_library() const { return {}; }
ProductChoices Machine::product_choices() const { return {}; }
void Machine::choose_products(const ProductChoices&) {}

#endif

Machine::~Machine() = default;

void Machine::write(const Tensor& t, const std::function<void(const Tensor&)>& fill) {
  if (kind() == DeviceKind::cpu) return fill(t);
  std::vector<std::byte> staging(t.bytes());
  fill({staging.data(), t.dtype, t.shape});
  copy_in(t.data, staging.data(), staging.size());
}

void Machine::read(const Tensor& t, const std::function<void(const Tensor&)>& use) {
  if (kind() == DeviceKind::cpu) return use(t);
  std::vector<std::byte> staging(t.bytes());
  copy_out(staging.data(), t.data, staging.size());
  use({staging.data(), t.dtype, t.shape});
}

}  // namespace octet
