// The field table: one row for each value of a RunConfig, with its JSON path, type, default, range, documentation and flag.
// The JSON parser, the flags of `octet train`, --help and the resolved config are generated from it, so a field cannot be in
// one of them and missing in another.
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

enum class FieldKind : uint8_t { integer, number, boolean, text, text_list, object_list, object };

// What follows a flag on the command line.
enum class FlagTakes : uint8_t { nothing, value, optional_value, values };

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
