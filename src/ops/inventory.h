// What of CUDA is in this program and on this machine. Takes no device.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

#include "core/capability.h"

namespace octet {

struct Inventory {
  struct Gpu {
    int index = 0;
    std::string name, uuid;
    Capability capability;
    int multiprocessors = 0;
    size_t memory_bytes = 0;
    bool usable = false;        // octet's kernels are compiled for it
  };
  bool built_with_cuda = false;
  int runtime_version = 0, driver_version = 0;   // as CUDA writes them: 13010 is 13.1; 0: no driver
  std::string product_library;                   // "cuBLASLt 130100"
  std::string architectures;                     // that kernels are compiled for, as CMake has them: "90a;100a"
  std::vector<Gpu> gpus;
};
Inventory take_inventory();

}  // namespace octet
