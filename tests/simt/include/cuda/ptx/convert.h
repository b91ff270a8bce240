// src/cuda/ptx/convert.h in C++: the same functions from numerics/.
#pragma once
#include <algorithm>

#include "numerics/bf16.h"
#include "numerics/formats.h"

namespace octet::ptx {
inline uint32_t pack_bf16(float low, float high) { return to_bf16(low).bits | static_cast<uint32_t>(to_bf16(high).bits) << 16; }
inline uint16_t pack_e4m3(float low, float high) { return static_cast<uint16_t>(encode<Dtype::e4m3>(low) | encode<Dtype::e4m3>(high) << 8); }
inline uint16_t pack_e5m2(float low, float high) { return static_cast<uint16_t>(encode<Dtype::e5m2>(low) | encode<Dtype::e5m2>(high) << 8); }
inline uint32_t max_u16x2(uint32_t a, uint32_t b) { return std::max(a & 0xFFFFu, b & 0xFFFFu) | std::max(a >> 16, b >> 16) << 16; }
}  // namespace octet::ptx
