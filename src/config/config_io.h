// Reading, merging, checking and writing run configs. All errors are octet::Error with ExitCode::config.
#pragma once
#include <array>
#include <nlohmann/json.hpp>
#include <string>

#include "config/fields.h"
#include "config/run_config.h"

namespace octet {

// Parses one JSON config text (RFC 8259, plus // and /* */ comments). The top level must be an object; duplicate keys, NaN,
// more than 1 MiB, 16 levels or 20,000 keys are errors. `name` (a file name) and line stand in messages and, for each key,
// in `origins` when it is not null.
nlohmann::json parse_config_text(const std::string& text, const std::string& name, Origins* origins = nullptr);

// parse_config_text() of a file.
nlohmann::json load_config_file(const std::string& path, Origins* origins = nullptr);

// A config under construction: files, then flags, then --set, each merged over what is there (RFC 7396: objects merge, null
// deletes, anything else replaces), with the origin of each value for messages.
struct ConfigTree {
  nlohmann::json values = nlohmann::json::object();
  Origins origins;

  void merge(const nlohmann::json& patch, const Origins& patch_origins);
  void merge_file(const std::string& path);   // a top-level "$schema" text is left out
  // Sets one value at a dotted path; numbers index existing list entries. Null deletes.
  void set(const std::string& path, nlohmann::json value, const std::string& origin);
  // "a.b.c=VALUE": VALUE is JSON when it parses as JSON, else (and for fields that hold text) a string.
  // A missing "=" is ExitCode::usage.
  void set_expression(const std::string& expression);
};

// The typed config of a merged JSON object. Unknown keys (named with the nearest valid one), wrong types, values out of
// range and missing required keys are errors.
RunConfig from_json(const nlohmann::json& values, const Origins& origins = {});

// Every field with its value; optional values that are not set are left out. from_json(to_json(c)) == c.
nlohmann::json to_json(const RunConfig& config);

// Fills in derived values (num_key_value_heads, head_dim, precision.amax_history_len, data.seed, sched.decay_steps) and checks
// what concerns more than one field, or what this version cannot do.
void validate(RunConfig& config);

// Shares of training, validation and test text from "99,1,0": one to three numbers, not negative, the first positive; missing
// ones are 0. Divided by their sum.
std::array<double, 3> parse_split(const std::string& split);

}  // namespace octet
