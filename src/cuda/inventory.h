// What of NVIDIA's is on this machine: driver, libraries, devices. Plain structs, for `octet doctor`.
//
// Makes no CUDA context (it takes no device memory and is quick); never throws for what is missing, but says so in `no_devices`. Free memory comes from NVML,
// which is part of the driver and loaded when asked: without it `free_bytes` is empty.
#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace octet::cuda {

struct InstalledDevice {
  int index = 0;                       // as the program counts: CUDA_VISIBLE_DEVICES decides
  std::string name, uuid;              // "GPU-8f2c..." as nvidia-smi prints it, "MIG-..." of a slice
  int major = 0, minor = 0;            // compute capability
  int multiprocessors = 0;
  size_t total_bytes = 0;
  std::optional<size_t> free_bytes;    // of all processes together
};

struct Inventory {
  std::string toolkit, runtime;        // "13.0": compiled against, linked
  std::string driver;                  // newest CUDA that the driver knows; empty: no driver
  std::string cublaslt, cublaslt_compiled;
  std::string architectures;           // that the kernels were compiled for, "90a"
  std::vector<InstalledDevice> devices;
  std::string no_devices;              // why the list is empty
};

Inventory take_inventory();

}  // namespace octet::cuda
