#include "config/field_values.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "config/nearest.h"
#include "config/units.h"

namespace octet {

std::string Place::origin() const {
  if (!origins) return {};
  for (std::string p = path;;) {
    if (const auto it = origins->find(p); it != origins->end()) return it->second;
    const size_t dot = p.rfind('.');
    if (dot == std::string::npos) return {};
    p.resize(dot);
  }
}

namespace config_detail {
namespace {

std::string plain(double v) { return nlohmann::json(v).dump(); }

void check_range(double v, const nlohmann::json& value, const FieldInfo& f, const Place& place) {
  const bool low = f.min && (f.above_min ? v <= *f.min : v < *f.min);
  const bool high = f.max && (f.below_max ? v >= *f.max : v > *f.max);
  if (low || high) fail(place, fmt::format("must be {}, not {}", range_text(f), shown(value)));
}

void check_choice(const std::string& text, const FieldInfo& f, const Place& place) {
  if (const auto it = f.refused.find(text); it != f.refused.end()) fail(place, fmt::format("= \"{}\": {}", text, it->second));
  if (f.choices.empty() || std::find(f.choices.begin(), f.choices.end(), text) != f.choices.end()) return;
  fail(place, fmt::format("must be one of {}, not {}", fmt::join(f.choices, ", "), shown(text)),
       fmt::format("did you mean \"{}\"?", nearest(text, f.choices)));
}

// A number with a unit suffix where none is read; says what to write instead.
std::string no_suffix_here(const nlohmann::json& value) {
  if (!value.is_string()) return {};
  const UnitCount count = parse_unit_count(value.get_ref<const std::string&>());
  if (count.fault == UnitFault::syntax) return {};
  return count.fault == UnitFault::none ? fmt::format("this field takes no unit suffix: write {}", count.value) : "this field takes no unit suffix";
}

int64_t checked_integer(const nlohmann::json& value, const FieldInfo& field, const Place& place) {
  if (field.takes_units && value.is_string()) {
    const UnitCount count = parse_unit_count(value.get_ref<const std::string&>());
    if (count.fault == UnitFault::syntax) fail(place, "must be an integer or one with a unit suffix, not " + shown(value), "write it like 32000, \"32k\", \"1.5T\" or \"4Ki\"");
    if (count.fault == UnitFault::fraction) fail(place, "must be a whole number, which " + shown(value) + " is not");
    if (count.fault == UnitFault::too_large) fail(place, "is too large: " + shown(value));
    return count.value;
  }
  if (!value.is_number_integer()) fail(place, "must be an integer, not " + shown(value), no_suffix_here(value));
  if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) fail(place, "is too large: " + shown(value));
  return value.get<int64_t>();
}

std::string checked_text(const nlohmann::json& value, const Place& place) {
  if (!value.is_string()) fail(place, "must be a string, not " + shown(value));
  const auto& text = value.get_ref<const std::string&>();
  try {
    (void)value.dump();  // throws for bytes that JSON could not hold, e.g. from the command line
  } catch (const nlohmann::json::type_error&) {
    fail(place, "is not valid UTF-8");
  }
  if (text.find('\0') != std::string::npos) fail(place, "contains a NUL character");
  return text;
}

template <class S>
void read_list(std::vector<S>& out, const nlohmann::json& value, const std::vector<Field<S>>& fields, const Place& place) {
  if (!value.is_array()) fail(place, "must be a list of objects, not " + shown(value));
  out.clear();
  for (size_t i = 0; i < value.size(); ++i) read_object(out.emplace_back(), value[i], fields, place.at(std::to_string(i)));
}

template <class S>
nlohmann::json write_list(const std::vector<S>& list, const std::vector<Field<S>>& fields) {
  nlohmann::json out = nlohmann::json::array();
  for (const S& s : list) out.push_back(write_object(s, fields));
  return out;
}

}  // namespace

void fail(const Place& place, const std::string& what, const std::string& fix) {
  const std::string path = place.path.empty() ? "the config" : printable(place.path, 160);
  throw Error(ExitCode::config, path + " " + what, place.origin(), fix);
}

std::string shown(const nlohmann::json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "a list";
  return printable(value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace), 60);
}

std::string range_text(const FieldInfo& f) {
  const auto number = [&](double v) { return f.kind == FieldKind::number ? plain(v) : fmt::format("{:.0f}", v); };
  std::string text;
  if (f.min) text = (f.above_min ? "above " : "at least ") + number(*f.min);
  if (f.max) text += (text.empty() ? "" : " and ") + std::string(f.below_max ? "below " : "at most ") + number(*f.max);
  return text;
}

void require_object(const nlohmann::json& value, const Place& place) {
  if (!value.is_object()) fail(place, "must be an object {...}, not " + shown(value));
}

void read_value(int64_t& out, const nlohmann::json& value, const FieldInfo& field, const Place& place) {
  out = checked_integer(value, field, place);
  check_range(static_cast<double>(out), value, field, place);
}

void read_value(uint64_t& out, const nlohmann::json& value, const FieldInfo& field, const Place& place) {
  if (!value.is_number_integer()) fail(place, "must be an integer, not " + shown(value), no_suffix_here(value));
  if (!value.is_number_unsigned() && value.get<int64_t>() < 0) fail(place, "must be at least 0, not " + shown(value));
  out = value.get<uint64_t>();
  check_range(static_cast<double>(out), value, field, place);
}

void read_value(double& out, const nlohmann::json& value, const FieldInfo& field, const Place& place) {
  if (!value.is_number()) fail(place, "must be a number, not " + shown(value), no_suffix_here(value));
  out = value.get<double>();
  if (!std::isfinite(out)) fail(place, "must be a finite number");
  check_range(out, value, field, place);
}

void read_value(bool& out, const nlohmann::json& value, const FieldInfo&, const Place& place) {
  if (!value.is_boolean()) fail(place, "must be true or false, not " + shown(value));
  out = value.get<bool>();
}

void read_value(std::string& out, const nlohmann::json& value, const FieldInfo& field, const Place& place) {
  out = checked_text(value, place);
  if (out.empty() && field.required()) fail(place, "must not be empty");
  check_choice(out, field, place);
}

void read_value(std::vector<std::string>& out, const nlohmann::json& value, const FieldInfo& field, const Place& place) {
  if (!value.is_array()) fail(place, "must be a list of strings, not " + shown(value));
  out.clear();
  for (size_t i = 0; i < value.size(); ++i) {
    const Place entry = place.at(std::to_string(i));
    out.push_back(checked_text(value[i], entry));
    check_choice(out.back(), field, entry);
  }
}

void read_value(std::vector<DataSource>& out, const nlohmann::json& value, const FieldInfo&, const Place& place) {
  read_list(out, value, data_source_fields(), place);
}

void read_value(std::vector<ValidSource>& out, const nlohmann::json& value, const FieldInfo&, const Place& place) {
  read_list(out, value, valid_source_fields(), place);
}

void read_value(std::vector<PrecisionRule>& out, const nlohmann::json& value, const FieldInfo&, const Place& place) {
  read_list(out, value, precision_rule_fields(), place);
}

nlohmann::json write_value(const std::vector<DataSource>& value) { return write_list(value, data_source_fields()); }
nlohmann::json write_value(const std::vector<ValidSource>& value) { return write_list(value, valid_source_fields()); }
nlohmann::json write_value(const std::vector<PrecisionRule>& value) { return write_list(value, precision_rule_fields()); }

void put(nlohmann::json& object, const std::string& path, nlohmann::json value) {
  nlohmann::json* at = &object;
  size_t begin = 0;
  for (size_t dot; (dot = path.find('.', begin)) != std::string::npos; begin = dot + 1) at = &(*at)[path.substr(begin, dot - begin)];
  (*at)[path.substr(begin)] = std::move(value);
}

void fail_unknown(const Place& place, const std::string& relative_path, const std::vector<std::string>& paths) {
  // Candidates are the siblings first: the keys (and sections) that could stand where the unknown one stands.
  const size_t dot = relative_path.rfind('.');
  const std::string parent = dot == std::string::npos ? "" : relative_path.substr(0, dot + 1);
  const std::string key = relative_path.substr(parent.size());
  std::vector<std::string> siblings, elsewhere;
  for (const std::string& p : paths) {
    if (p.rfind(parent, 0) == 0) siblings.push_back(p.substr(parent.size(), p.find('.', parent.size()) - parent.size()));
    if (p.substr(p.rfind('.') + 1) == key) elsewhere.push_back(p);
  }
  const std::string base = place.path.substr(0, place.path.size() - relative_path.size());
  std::string best = parent + nearest(key, siblings);
  if (!plausible_typo(key, best.substr(parent.size())) && !elsewhere.empty()) best = elsewhere.front();
  const std::string path = printable(place.path, 160);
  throw Error(ExitCode::config, "unknown key " + path, place.origin(), "did you mean " + base + best + "?");
}

void fail_missing(const Place& place, const std::vector<const FieldInfo*>& missing) {
  std::vector<std::string> names;
  for (const FieldInfo* f : missing) names.push_back(place.at(f->path).path);
  const bool nested = !place.path.empty();
  throw Error(ExitCode::config, fmt::format("the config lacks {}", fmt::join(names, ", ")), place.origin(),
              nested ? fmt::format("for example \"{}\": {}", missing[0]->path, missing[0]->example)
                     : fmt::format("give each in a --config file or as a flag, for example --set {}={}; configs/runs/quickstart.json with "
                                   "configs/models/tiny_byte.json is a complete config",
                                   names[0], missing[0]->example));
}

}  // namespace config_detail
}  // namespace octet
