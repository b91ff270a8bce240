// CRC-32C (Castagnoli; reflected polynomial 0x82F63B78, initial and final value all ones; RFC 3720 B.4) and TFRecord's masked form
// of it, rotate right by 15 and add 0xA282EAD8 modulo 2^32. crc32c("123456789") = 0xE3069283, masked 0xC78AB0E5.
#pragma once
#include <cstdint>
#include <string_view>

namespace octet {

uint32_t crc32c(std::string_view bytes);
uint32_t masked_crc32c(std::string_view bytes);

}  // namespace octet
