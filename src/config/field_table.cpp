#include "config/field_table.h"

namespace octet::config_detail {

Row& Row::at_least(double v) {
  field_.min = v;
  return *this;
}

Row& Row::above(double v) {
  field_.above_min = true;
  return at_least(v);
}

Row& Row::at_most(double v) {
  field_.max = v;
  return *this;
}

Row& Row::below(double v) {
  field_.below_max = true;
  return at_most(v);
}

Row& Row::one_of(const std::vector<std::string>& choices) {
  field_.choices = choices;
  return *this;
}

Row& Row::one_of(std::initializer_list<const char*> choices) {
  field_.choices.assign(choices.begin(), choices.end());
  return *this;
}

Row& Row::refuse(const char* value, const char* reason) {
  field_.refused.emplace(value, reason);
  return *this;
}

Row& Row::required(const char* example) {
  field_.example = example;
  return *this;
}

Row& Row::unless(const char* alternative) {
  field_.alternative = alternative;
  return *this;
}

Row& Row::derived(const char* how) {
  field_.fallback_note = how;
  return *this;
}

Row& Row::of(const std::vector<FieldInfo>& element) {
  field_.element = element;
  return *this;
}

Row& Row::units() {
  field_.takes_units = true;
  return *this;
}

Row& Row::flag(const char* name) {
  field_.flag = {name, FlagTakes::value, nullptr};
  return *this;
}

Row& Row::flag_values(const char* name) {
  field_.flag = {name, FlagTakes::values, nullptr};
  return *this;
}

Row& Row::flag_switch(const char* name, bool implied) {
  field_.flag = {name, FlagTakes::nothing, implied};
  return *this;
}

Row& Row::flag_switch(const char* name, const char* implied) {
  field_.flag = {name, FlagTakes::nothing, implied};
  return *this;
}

Row& Row::flag_optional(const char* name, int implied) {
  field_.flag = {name, FlagTakes::optional_value, implied};
  return *this;
}

}  // namespace octet::config_detail
