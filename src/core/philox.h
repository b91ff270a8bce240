// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): a counter-based generator.
// A value is a pure function of (seed, purpose, logical name, element index, step), so random numbers depend neither on
// the number of threads or ranks nor on the order of calls, and nothing about them need be saved.
#pragma once
#include <array>
#include <cmath>
#include <cstdint>
#include <string_view>

namespace octet {

enum class RngPurpose : uint32_t { init = 1, stochastic_rounding = 2, perturbation = 3, moments = 4 };

// FNV-1a, 64 bits (Fowler, Noll, Vo).
constexpr uint64_t fnv1a64(std::string_view s) {
  uint64_t h = 0xcbf29ce484222325ull;
  for (char c : s) h = (h ^ static_cast<uint8_t>(c)) * 1099511628211ull;
  return h;
}

struct Philox {
  std::array<uint32_t, 2> key{};
  std::array<uint32_t, 2> stream{};  // upper half of the counter

  Philox(uint64_t seed, RngPurpose purpose, std::string_view logical_name, uint64_t step = 0) : Philox(seed, purpose, fnv1a64(logical_name), step) {}
  Philox(uint64_t seed, RngPurpose purpose, uint64_t h, uint64_t step) {
    key = {static_cast<uint32_t>(seed) ^ static_cast<uint32_t>(h >> 32), static_cast<uint32_t>(seed >> 32) ^ static_cast<uint32_t>(purpose)};
    stream = {static_cast<uint32_t>(h), static_cast<uint32_t>(step)};
  }

  // Four independent 32-bit words for block `index`.
  std::array<uint32_t, 4> block(uint64_t index) const {
    return rounds({static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), stream[0], stream[1]}, key);
  }
  uint32_t word(uint64_t element) const { return block(element / 4)[element % 4]; }

  // Standard normal by Box-Muller in double: elements 2i and 2i+1 share a block's words.
  double normal(uint64_t element) const { return normals(element / 2)[element % 2]; }
  // Elements 2i and 2i+1.
  std::array<double, 2> normals(uint64_t i) const {
    const auto w = block(i);
    const double u1 = (static_cast<double>((static_cast<uint64_t>(w[0]) << 21) | (w[1] >> 11)) + 0.5) * 0x1p-53;
    const double u2 = (static_cast<double>((static_cast<uint64_t>(w[2]) << 21) | (w[3] >> 11)) + 0.5) * 0x1p-53;
    const double r = std::sqrt(-2.0 * std::log(u1)), a = 6.283185307179586476925 * u2;
    return {r * std::cos(a), r * std::sin(a)};
  }

  static constexpr std::array<uint32_t, 4> rounds(std::array<uint32_t, 4> c, std::array<uint32_t, 2> k) {
    for (int i = 0; i < 10; ++i) {
      const uint64_t p0 = 0xD2511F53ull * c[0], p1 = 0xCD9E8D57ull * c[2];
      c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k[0], static_cast<uint32_t>(p1), static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k[1], static_cast<uint32_t>(p0)};
      k = {k[0] + 0x9E3779B9u, k[1] + 0xBB67AE85u};
    }
    return c;
  }
};

}  // namespace octet
