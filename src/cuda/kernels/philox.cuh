// core/philox.h on the device: the same words.
#pragma once
#include <cstdint>

#include "core/philox.h"

namespace octet::cuda {

// One stream: (seed, purpose, hashed name, step).
struct PhiloxStream {
  uint32_t key0, key1, name, step;

  __device__ __forceinline__ PhiloxStream(uint64_t seed, RngPurpose purpose, uint64_t name_hash, uint64_t step_)
      : key0(static_cast<uint32_t>(seed) ^ static_cast<uint32_t>(name_hash >> 32)), key1(static_cast<uint32_t>(seed >> 32) ^ static_cast<uint32_t>(purpose)),
        name(static_cast<uint32_t>(name_hash)), step(static_cast<uint32_t>(step_)) {}

  __device__ __forceinline__ uint32_t word(uint64_t element) const {
    const uint4 words = block(element / 4);
    const uint32_t e = static_cast<uint32_t>(element % 4);
    return e == 0 ? words.x : e == 1 ? words.y : e == 2 ? words.z : words.w;
  }

  __device__ __forceinline__ uint4 block(uint64_t index) const {
    uint32_t c0 = static_cast<uint32_t>(index), c1 = static_cast<uint32_t>(index >> 32), c2 = name, c3 = step, k0 = key0, k1 = key1;
#pragma unroll
    for (int i = 0; i < 10; ++i) {
      const uint64_t p0 = 0xD2511F53ull * c0, p1 = 0xCD9E8D57ull * c2;
      const uint32_t n0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0, n2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
      c1 = static_cast<uint32_t>(p1);
      c3 = static_cast<uint32_t>(p0);
      c0 = n0;
      c2 = n2;
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    return make_uint4(c0, c1, c2, c3);
  }
};

}  // namespace octet::cuda
