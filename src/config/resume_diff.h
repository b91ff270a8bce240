// What may change between a checkpoint's config and that of the run that resumes from it: each field's OnResume class decides.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "config/fields.h"

namespace octet {

struct ConfigChange {
  std::string path;            // of the field; "data.train.1.weight" in a list of objects
  nlohmann::json before, now;  // null: absent, and there is no default
  OnResume on_resume = OnResume::free;
  bool allowed = false;        // a forbidden one that --allow-config-change names
};

// The differences of two resolved configs in table order. A key that one of them lacks has its default; lists of objects are compared
// entry by entry, and as one value where their lengths differ. Keys of `saved` that this version does not know come last, as warn.
// Both must be objects; nothing is assumed about the types within `saved`, which is read from a file.
std::vector<ConfigChange> config_changes(const nlohmann::json& saved, const nlohmann::json& now);

// Marks what `allowed` names, and throws Error(config) for the first fixed change, else for the first forbidden one that is not named,
// or for a name in `allowed` that is no field.
void check_config_changes(std::vector<ConfigChange>& changes, const std::vector<std::string>& allowed);

// A value of a change on one short line; "-" when absent.
std::string change_text(const nlohmann::json& value);

}  // namespace octet
