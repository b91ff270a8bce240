// NumPy's legacy RandomState for what samplers need: seeding by one 32-bit integer, and shuffle.
// Source: NumPy's randomkit/legacy distributions as documented (Fisher-Yates from the back, masked rejection); the generator is
// MT19937 (Matsumoto and Nishimura, 1998), seeded as std::mt19937 is.
#pragma once
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <utility>

namespace octet::data {

class NumpyRandomState {
 public:
  explicit NumpyRandomState(uint32_t seed) : generator_(seed) {}

  // Uniform in [0, max]: draws under the smallest all-ones mask, rejecting values above max. One 32-bit draw, or two (high first) above 2^32 - 1.
  uint64_t bounded(uint64_t max) {
    if (max == 0) return 0;
    uint64_t mask = max;
    for (int shift = 1; shift < 64; shift *= 2) mask |= mask >> shift;
    for (;;) {
      uint64_t value = generator_();
      if (max > 0xffffffffull) value = value << 32 | static_cast<uint64_t>(generator_());
      value &= mask;
      if (value <= max) return value;
    }
  }

  template <class T>
  void shuffle(std::span<T> values) {
    for (size_t i = values.size(); i-- > 1;) std::swap(values[i], values[static_cast<size_t>(bounded(i))]);
  }

 private:
  std::mt19937 generator_;
};

}  // namespace octet::data
