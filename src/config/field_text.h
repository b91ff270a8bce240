// A field in words, shared by --help and the reference page. Internal to config/.
#pragma once
#include <string>
#include <vector>

#include "config/fields.h"

namespace octet::config_detail {

struct Section {
  std::string key;     // first part of its fields' paths
  std::string title;
};
const std::vector<Section>& sections();

// The rows of a section, in table order.
std::vector<const FieldInfo*> fields_of(const Section& section);

std::string type_text(const FieldInfo& field);      // "integer", "a|b|c", "[{path, weight}, ...]"
std::string default_text(const FieldInfo& field);   // "required", a JSON value, or how it is derived
std::string flag_text(const FieldInfo& field);      // "--lr V"; empty without a flag
std::string resume_text(OnResume on_resume);        // "free", "warns", "refused", "fixed"

}  // namespace octet::config_detail
