#include "report/crc32c.h"

#include <cstring>
#include <nmmintrin.h>

namespace octet {

// The processor's own instruction: SSE4.2 is part of the x86-64-v3 baseline.
uint32_t crc32c(std::string_view bytes) {
  uint64_t crc = 0xFFFFFFFFu;
  size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, 8);
    crc = _mm_crc32_u64(crc, word);
  }
  auto tail = static_cast<uint32_t>(crc);
  for (; i < bytes.size(); ++i) tail = _mm_crc32_u8(tail, static_cast<unsigned char>(bytes[i]));
  return ~tail;
}

uint32_t masked_crc32c(std::string_view bytes) {
  const uint32_t crc = crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8u;
}

}  // namespace octet
