// JSON from outside, read strictly: duplicate keys, deep nesting and oversized arrays are errors, not surprises.
#pragma once
#include <cstddef>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace octet {

struct JsonLimits {
  size_t max_depth = 64;                                  // nested objects and arrays
  size_t max_array = std::numeric_limits<size_t>::max();  // elements of one array
};

// Parses UTF-8 JSON (RFC 8259, no comments). Throws Error(ExitCode::checkpoint) with `where` in front.
nlohmann::json parse_strict_json(std::string_view text, const std::string& where, const JsonLimits& limits = {});

// A name from a file, safe to print on one line: JSON-quoted ASCII, cut after about 100 characters.
std::string printable(std::string_view name);

// A non-negative integer that fits int64_t and was written without fraction or exponent.
bool is_count(const nlohmann::json& value);

}  // namespace octet
