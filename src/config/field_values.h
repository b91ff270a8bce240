// Strictly typed conversion between JSON and the members of the config structs. Internal to config/.
#pragma once
#include <array>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "config/fields.h"
#include "core/error.h"

namespace octet::config_detail {

// "<origin>: <path> <what> (<fix>)"
[[noreturn]] void fail(const Place& place, const std::string& what, const std::string& fix = {});

// The value as it is quoted in messages: short, one line.
std::string shown(const nlohmann::json& value);

// "at least 1 and below 2"; empty for a field without bounds.
std::string range_text(const FieldInfo& field);

void read_value(int64_t& out, const nlohmann::json& value, const FieldInfo& field, const Place& place);
void read_value(uint64_t& out, const nlohmann::json& value, const FieldInfo& field, const Place& place);
void read_value(double& out, const nlohmann::json& value, const FieldInfo& field, const Place& place);
void read_value(bool& out, const nlohmann::json& value, const FieldInfo& field, const Place& place);
void read_value(std::string& out, const nlohmann::json& value, const FieldInfo& field, const Place& place);
void read_value(std::vector<std::string>& out, const nlohmann::json& value, const FieldInfo& field, const Place& place);
void read_value(std::vector<DataSource>& out, const nlohmann::json& value, const FieldInfo& field, const Place& place);
void read_value(std::vector<ValidSource>& out, const nlohmann::json& value, const FieldInfo& field, const Place& place);
void read_value(std::vector<PrecisionRule>& out, const nlohmann::json& value, const FieldInfo& field, const Place& place);
// {"fprop": {"x": Spec, "w": Spec}, "dgrad": {"dy", "w"}, "wgrad": {"dy", "x"}} <-> keys "fprop.x" ...; a GEMM may be missing.
void read_value(std::map<std::string, CustomOperand>& out, const nlohmann::json& value, const FieldInfo& field, const Place& place);
template <class T>
void read_value(std::optional<T>& out, const nlohmann::json& value, const FieldInfo& field, const Place& place) {
  T inner{};
  read_value(inner, value, field, place);
  out = inner;
}
// The two operands of each GEMM in precision.custom.
struct GemmOperands {
  std::string gemm;
  std::array<std::string, 2> operands;
};
const std::vector<GemmOperands>& gemm_operands();
// A block shape: [rows, length along the contraction], 0 the whole extent; "tensor" is [0, 0], "row" is [1, 0].
void read_block(CustomOperand& out, const nlohmann::json& value, const FieldInfo& field, const Place& place);
nlohmann::json write_block(const CustomOperand& operand);

template <class T>
nlohmann::json write_value(const T& value) {
  return value;
}
template <class T>
nlohmann::json write_value(const std::optional<T>& value) {
  return value ? nlohmann::json(*value) : nlohmann::json();
}
nlohmann::json write_value(const std::vector<DataSource>& value);
nlohmann::json write_value(const std::vector<ValidSource>& value);
nlohmann::json write_value(const std::vector<PrecisionRule>& value);
nlohmann::json write_value(const std::map<std::string, CustomOperand>& value);

template <class T> struct KindOf;
template <> struct KindOf<int64_t> { static constexpr FieldKind value = FieldKind::integer; };
template <> struct KindOf<uint64_t> { static constexpr FieldKind value = FieldKind::integer; };
template <> struct KindOf<double> { static constexpr FieldKind value = FieldKind::number; };
template <> struct KindOf<bool> { static constexpr FieldKind value = FieldKind::boolean; };
template <> struct KindOf<std::string> { static constexpr FieldKind value = FieldKind::text; };
template <> struct KindOf<std::vector<std::string>> { static constexpr FieldKind value = FieldKind::text_list; };
template <> struct KindOf<std::vector<DataSource>> { static constexpr FieldKind value = FieldKind::object_list; };
template <> struct KindOf<std::vector<ValidSource>> { static constexpr FieldKind value = FieldKind::object_list; };
template <> struct KindOf<std::vector<PrecisionRule>> { static constexpr FieldKind value = FieldKind::object_list; };
template <> struct KindOf<std::map<std::string, CustomOperand>> { static constexpr FieldKind value = FieldKind::operands; };
template <class T> struct KindOf<std::optional<T>> : KindOf<T> {};

// Throws for a key that is neither one of `paths` nor a section of theirs, with the nearest valid one.
[[noreturn]] void fail_unknown(const Place& place, const std::string& relative_path, const std::vector<std::string>& paths);
[[noreturn]] void fail_missing(const Place& place, const std::vector<const FieldInfo*>& missing);
void require_object(const nlohmann::json& value, const Place& place);

template <class S>
void read_section(S& out, const nlohmann::json& value, const std::vector<Field<S>>& fields, const std::string& prefix, const Place& place,
                  std::set<std::string>& seen) {
  require_object(value, place);
  for (const auto& [key, child] : value.items()) {
    if (key.find('.') != std::string::npos) {
      fail(place, "has the key \"" + key.substr(0, 80) + "\", but keys are nested", "write {\"a\": {\"b\": ...}} for a.b");
    }
    const std::string path = prefix + key;
    const Field<S>* field = nullptr;
    bool section = false;
    for (const Field<S>& f : fields) {
      if (f.path == path) field = &f;
      section = section || f.path.rfind(path + ".", 0) == 0;
    }
    if (field) {
      field->read(out, child, *field, place.at(key));
      seen.insert(path);
    } else if (section) {
      read_section(out, child, fields, path + ".", place.at(key), seen);
    } else {
      std::vector<std::string> paths;
      for (const Field<S>& f : fields) paths.push_back(f.path);
      fail_unknown(place.at(key), path, paths);
    }
  }
}

// Reads an object against its rows: unknown keys, wrong types, values out of range and missing required keys are errors.
template <class S>
void read_object(S& out, const nlohmann::json& value, const std::vector<Field<S>>& fields, const Place& place) {
  std::set<std::string> seen;
  read_section(out, value, fields, "", place, seen);
  std::vector<const FieldInfo*> missing;
  for (const Field<S>& f : fields) {
    if (f.required() && !seen.count(f.path) && !seen.count(f.alternative)) missing.push_back(&f);
  }
  if (!missing.empty()) fail_missing(place, missing);
}

// Puts `value` at a dotted path of an object, making the sections on the way.
void put(nlohmann::json& object, const std::string& path, nlohmann::json value);

template <class S>
nlohmann::json write_object(const S& in, const std::vector<Field<S>>& fields) {
  nlohmann::json out = nlohmann::json::object();
  for (const Field<S>& f : fields) {
    nlohmann::json value = f.write(in);
    // An empty text means "not given" where that is the default; elsewhere it stays, for the checks to see.
    const bool unchosen = f.kind == FieldKind::text && value == "" && f.fallback == "";
    if (!value.is_null() && !unchosen) put(out, f.path, std::move(value));
  }
  return out;
}

}  // namespace octet::config_detail
