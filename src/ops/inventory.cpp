#include "ops/inventory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>

#ifdef OCTET_HAVE_CUDA
#include "cuda/device.h"
#include "cuda/gemm/plans.h"
#endif

namespace octet {

#ifdef OCTET_HAVE_CUDA
namespace {

// Whether machine code for one of `architectures` ("90a;100a") runs on a GPU of capability c: "90a" on 9.0 alone, "89" on 8.9 and later ones of 8.x
// (CUDA C++ Programming Guide, "Binary Compatibility").
bool runs_on(const std::string& architectures, Capability c) {
  size_t begin = 0;
  while (begin < architectures.size()) {
    const size_t end = std::min(architectures.find(';', begin), architectures.size());
    const std::string one = architectures.substr(begin, end - begin);
    const int number = std::atoi(one.c_str());
    const Capability built{number / 10, number % 10};
    const bool exact = !one.empty() && !std::isdigit(static_cast<unsigned char>(one.back()));
    if (exact ? built == c : built.major == c.major && built.minor <= c.minor) return true;
    begin = end + 1;
  }
  return false;
}

}  // namespace

Inventory take_inventory() {
  Inventory i;
  i.built_with_cuda = true;
  i.runtime_version = cuda::runtime_version();
  i.driver_version = cuda::driver_version();
  i.product_library = fmt::format("cuBLASLt {}", cuda::GemmPlans::library_version());
  i.architectures = OCTET_CUDA_ARCHITECTURES;
  for (const cuda::DeviceInfo& d : cuda::list_devices()) i.gpus.push_back({d.index, d.name, d.uuid, d.capability, d.multiprocessors, d.memory_bytes, runs_on(i.architectures, d.capability)});
  return i;
}
#else
Inventory take_inventory() { return {}; }
#endif

}  // namespace octet
