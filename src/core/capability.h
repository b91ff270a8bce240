// Compute capability of an NVIDIA GPU (CUDA C++ Programming Guide, appendix "Compute Capabilities").
#pragma once
#include <compare>

namespace octet {

struct Capability {
  int major = 0, minor = 0;
  auto operator<=>(const Capability&) const = default;
};

}  // namespace octet
