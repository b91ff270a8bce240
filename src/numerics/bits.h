// Bit casts and the host/device marker shared by all numerics headers.
#pragma once
#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define OCTET_HD __host__ __device__
#else
#define OCTET_HD
#endif

namespace octet {

OCTET_HD inline uint32_t bits_of(float x) {
  uint32_t u;
  memcpy(&u, &x, 4);
  return u;
}
OCTET_HD inline float float_from_bits(uint32_t u) {
  float x;
  memcpy(&x, &u, 4);
  return x;
}

}  // namespace octet
