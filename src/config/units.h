// Counts with a unit suffix, as fields marked units() take them: "32k", "1.5T", "4Ki".
//
//   k K 10^3   M 10^6   G B 10^9   T 10^12   Ki 2^10   Mi 2^20   Gi 2^30
//
// A fraction is allowed when the count is whole: "1.5k" is 1500. No sign, no space, no exponent; the suffix must be there.
#pragma once
#include <cstdint>
#include <string_view>

namespace octet {

enum class UnitFault : uint8_t {
  none,
  syntax,     // not a number with one of the suffixes
  fraction,   // such a number, but no whole one
  too_large,  // beyond 2^63 - 1, or of more than 18 digits
};

struct UnitCount {
  int64_t value = 0;  // 0 unless fault is none
  UnitFault fault = UnitFault::none;
};

UnitCount parse_unit_count(std::string_view text);

// The same syntax as a regular expression (ECMA 262), for the JSON Schema.
inline constexpr const char* unit_count_pattern = "^[0-9]+([.][0-9]+)?([kKMGBT]|[KMG]i)$";

}  // namespace octet
