#include "cuda/inventory.h"

#include <cublasLt.h>
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include "cuda/gemm/plans.h"

namespace octet::cuda {
namespace {

// NVML by its documented C interface; its header is no part of every toolkit. Free memory by UUID, empty when anything is missing.
class Nvml {
 public:
  Nvml() : library_(::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) {
    if (!library_) return;
    const auto find = [&](const char* symbol, auto& function) { return (function = reinterpret_cast<std::decay_t<decltype(function)>>(::dlsym(library_, symbol))) != nullptr; };
    int (*init)() = nullptr;
    usable_ = find("nvmlInit_v2", init) && find("nvmlShutdown", shutdown_) && find("nvmlDeviceGetHandleByUUID", by_uuid_) && find("nvmlDeviceGetMemoryInfo", memory_) && init() == 0;
  }
  ~Nvml() {
    if (usable_) shutdown_();
    if (library_) ::dlclose(library_);
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  std::optional<size_t> free_bytes(const std::string& uuid) const {
    struct {
      unsigned long long total, free, used;   // nvmlMemory_t
    } memory{};
    void* device = nullptr;
    if (!usable_ || by_uuid_(uuid.c_str(), &device) != 0 || memory_(device, &memory) != 0) return std::nullopt;
    return static_cast<size_t>(memory.free);
  }

 private:
  void* library_;
  bool usable_ = false;
  int (*shutdown_)() = nullptr;
  int (*by_uuid_)(const char*, void**) = nullptr;
  int (*memory_)(void*, void*) = nullptr;
};

// CUDA's 13010 is "13.1".
std::string cuda_version(int v) { return fmt::format("{}.{}", v / 1000, v % 1000 / 10); }
// cuBLAS' 130100 is "13.1.0".
std::string cublas_version(size_t v) { return fmt::format("{}.{}.{}", v / 10000, v / 100 % 100, v % 100); }

std::string uuid_text(const cudaUUID_t& id) {
  std::string text;
  for (int i = 0; i < 16; ++i) text += fmt::format("{}{:02x}", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", static_cast<unsigned char>(id.bytes[i]));
  return text;
}

std::string why_none(cudaError_t error, int driver, const std::string& runtime) {
  if (driver == 0) return "no NVIDIA driver on this machine";
  if (error == cudaErrorInsufficientDriver) return fmt::format("the NVIDIA driver knows CUDA up to {}, this octet needs {}", cuda_version(driver), runtime);
  if (error == cudaErrorNoDevice || error == cudaSuccess) return "the NVIDIA driver shows no device to this process (see nvidia-smi and CUDA_VISIBLE_DEVICES)";
  return fmt::format("the NVIDIA driver fails: {} ({})", cudaGetErrorString(error), cudaGetErrorName(error));
}

}  // namespace

Inventory take_inventory() {
  Inventory found;
  int driver = 0, runtime = 0, count = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess) driver = 0;
  if (driver != 0) found.driver = cuda_version(driver);
  if (cudaRuntimeGetVersion(&runtime) == cudaSuccess) found.runtime = cuda_version(runtime);
  found.toolkit = cuda_version(CUDART_VERSION);
  found.cublaslt = cublas_version(GemmPlans::library_version());
  found.cublaslt_compiled = cublas_version(CUBLAS_VERSION);
  found.architectures = OCTET_CUDA_ARCHS;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) {
    cudaGetLastError();   // a later call must not report this one
    found.no_devices = why_none(error, driver, found.runtime);
    return found;
  }
  const Nvml nvml;
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp p{};
    if (cudaGetDeviceProperties(&p, i) != cudaSuccess) {
      cudaGetLastError();
      continue;
    }
    const std::string uuid = uuid_text(p.uuid);
    InstalledDevice d{i, p.name, "GPU-" + uuid, p.major, p.minor, p.multiProcessorCount, p.totalGlobalMem, nvml.free_bytes("GPU-" + uuid)};
    if (!d.free_bytes && (d.free_bytes = nvml.free_bytes("MIG-" + uuid))) d.uuid = "MIG-" + uuid;
    found.devices.push_back(std::move(d));
  }
  if (found.devices.empty()) found.no_devices = "the NVIDIA driver shows devices, but tells nothing about them (see nvidia-smi)";
  return found;
}

}  // namespace octet::cuda
