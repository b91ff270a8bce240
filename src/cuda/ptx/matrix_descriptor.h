// Operands in shared memory as a warpgroup's products read them (PTX ISA, "Matrix descriptor format"), from the address within shared memory.
//
// Operands lie as the copy engine leaves them with its 128-byte swizzle: rows of 128 bytes, 16-byte unit u of row r at u ^ r % 8, tiles at multiples of 1024 bytes.
#pragma once
#include <cstdint>

#include "numerics/bits.h"

namespace octet::ptx {

// leading, stride: bytes.
OCTET_HD constexpr uint64_t matrix_descriptor(uint32_t address, uint32_t leading, uint32_t stride) {
  constexpr uint64_t swizzle_128 = uint64_t{1} << 62;
  return (address & 0x3FFFF) >> 4 | static_cast<uint64_t>(leading >> 4) << 16 | static_cast<uint64_t>(stride >> 4) << 32 | swizzle_128;
}
// A, and B with the products' k along a row ([N rows, 64 k]): groups of 8 rows follow each other (leading has no meaning), the next 16 k are 32 bytes further.
OCTET_HD constexpr uint64_t descriptor_of_rows(uint32_t address) { return matrix_descriptor(address, 16, 1024); }
// B with k along its rows ([16 k rows, 64 columns]), `apart` bytes from each 64 columns to the next.
OCTET_HD constexpr uint64_t descriptor_of_columns(uint32_t address, uint32_t apart) { return matrix_descriptor(address, apart, 1024); }

}  // namespace octet::ptx
