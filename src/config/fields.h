// The field table: one row for each value of a RunConfig, with its JSON path, type, default, range, documentation and flag.
// The JSON parser, the flags of `octet train`, --help, the JSON Schema, the reference page, the resolved config and the rules of
// resuming are generated from it, so a field cannot be in one of them and missing in another.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "config/run_config.h"

namespace octet {

// operands: precision.custom; block: the shape of elements that share a scale in one of its operands.
enum class FieldKind : uint8_t { integer, number, boolean, text, text_list, object_list, operands, block };

// What a run does when it is resumed with another value than its checkpoint's (config/resume_diff.h). A row must choose.
enum class OnResume : uint8_t {
  free,       // goes on; says nothing about the result (where it writes, how often it saves)
  warn,       // goes on with a warning; --strict refuses
  forbidden,  // refused, unless --allow-config-change names the field
  fixed,      // refused always: the checkpoint's tensors have the shape of the old value
};

// What follows a flag on the command line: optional_value a number or nothing, optional_word any word or nothing.
enum class FlagTakes : uint8_t { nothing, value, optional_value, optional_word, values };

struct FieldFlag {
  std::string name;                  // with the dashes; Megatron-LM's name where it has the same meaning; empty: none
  FlagTakes takes = FlagTakes::value;
  nlohmann::json implied;            // value of the field when nothing follows the flag
};

struct FieldInfo {
  std::string path;                  // dotted JSON path, e.g. "model.rope_scaling.factor"
  FieldKind kind = FieldKind::text;
  std::string doc;
  std::vector<std::string> choices;  // of a text, or of each entry of a text list; empty: any
  std::optional<double> min, max;    // of a number
  bool above_min = false;            // min itself is excluded
  bool below_max = false;            // max itself is excluded
  bool is_unsigned = false;          // an integer of [0, 2^64)
  bool takes_units = false;          // an integer that may be written as "32k" (config/units.h)
  OnResume on_resume = OnResume::forbidden;
  nlohmann::json fallback;           // default; null: absent
  std::string fallback_note;         // how an absent value is derived
  std::string example;               // non-empty: the field is required, and this is a value for the message that says so
  std::string alternative;           // path of a field that may be given instead of a required one
  FieldFlag flag;
  std::map<std::string, std::string> refused;  // values that deserve an explanation instead of "must be one of"
  std::vector<FieldInfo> element;    // rows of the objects in an object list

  bool required() const { return !example.empty(); }
};

// Where a value came from ("runs/a.json:12", "--lr"), by dotted path; messages name it.
using Origins = std::map<std::string, std::string>;

// A position in a config while it is read.
struct Place {
  std::string path;
  const Origins* origins = nullptr;

  Place at(const std::string& key) const { return {path.empty() ? key : path + "." + key, origins}; }
  std::string origin() const;   // of this path or its nearest recorded ancestor; may be empty
};

template <class S>
struct Field : FieldInfo {
  std::function<void(S&, const nlohmann::json&, const FieldInfo&, const Place&)> read;   // throws Error(config)
  std::function<nlohmann::json(const S&)> write;                                         // null: absent
};

const std::vector<Field<RunConfig>>& run_fields();
const std::vector<Field<DataSource>>& data_source_fields();
const std::vector<Field<ValidSource>>& valid_source_fields();
const std::vector<Field<PrecisionRule>>& precision_rule_fields();
const std::vector<Field<CustomOperand>>& custom_operand_fields();

// The row of `path`, or null.
const FieldInfo* find_field(const std::string& path);

}  // namespace octet
