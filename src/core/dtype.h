// Element types of tensors. Formats below one byte (E3M2, E2M3, E2M1) are held one code a byte: they exist for emulation;
// native products of E2M1 pack it themselves (cuda/kernels/block_scales.h).
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace octet {

enum class Dtype : uint8_t { f32, bf16, i32, u8, e4m3, e5m2, e3m2, e2m3, e2m1, e8m0, u16, f64, i64 };

constexpr size_t size_bytes(Dtype d) {
  switch (d) {
    case Dtype::f64:
    case Dtype::i64: return 8;
    case Dtype::f32:
    case Dtype::i32: return 4;
    case Dtype::bf16:
    case Dtype::u16: return 2;
    default: return 1;
  }
}

constexpr std::string_view name(Dtype d) {
  constexpr std::string_view names[] = {"f32", "bf16", "i32", "u8", "e4m3", "e5m2", "e3m2", "e2m3", "e2m1", "e8m0", "u16", "f64", "i64"};
  return names[static_cast<size_t>(d)];
}

}  // namespace octet
