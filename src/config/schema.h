// The config as a JSON Schema (draft 2020-12), generated from the field table; docs/reference/config.schema.json is its output.
//
// It holds what one key alone can be wrong about: names, types, ranges, choices, required keys. Two things from_json() refuses
// pass it: an integer written as 128.0, and a count with a unit suffix that is no whole number or out of range. What concerns more than one
// key is validate()'s.
#pragma once
#include <nlohmann/json.hpp>

namespace octet {

nlohmann::ordered_json config_schema();

}  // namespace octet
