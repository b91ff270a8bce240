#include "config/resume_diff.h"

#include <fmt/format.h>

#include <algorithm>

#include "config/field_values.h"
#include "config/nearest.h"
#include "core/error.h"

namespace octet {
namespace {

using nlohmann::json;

// The value at a dotted path of objects, or null.
const json* find_value(const json& object, const std::string& path) {
  const json* at = &object;
  for (size_t begin = 0;;) {
    const size_t dot = path.find('.', begin);
    if (!at->is_object()) return nullptr;
    const auto it = at->find(path.substr(begin, dot == std::string::npos ? dot : dot - begin));
    if (it == at->end()) return nullptr;
    at = &*it;
    if (dot == std::string::npos) return at;
    begin = dot + 1;
  }
}

// An empty text stands for "not given", like an absent value, where it is the default.
json value_or_default(const json& object, const FieldInfo& f) {
  const json* found = find_value(object, f.path);
  const json value = found ? *found : f.fallback;
  return value == "" && f.fallback == "" ? json() : value;
}

void compare_field(const json& saved, const json& now, const FieldInfo& f, const std::string& prefix, std::vector<ConfigChange>& out);

// precision.custom: {"fprop": {"x": {...}, "w": {...}}, ...}, operand by operand.
void compare_operands(const json& before, const json& after, const FieldInfo& f, std::vector<ConfigChange>& out) {
  for (const auto& g : config_detail::gemm_operands()) {
    for (const std::string& operand : g.operands) {
      const std::string path = g.gemm + "." + operand;
      const json *a = find_value(before, path), *b = find_value(after, path);
      if (a && b) {
        for (const FieldInfo& e : custom_operand_fields()) compare_field(*a, *b, e, f.path + "." + path + ".", out);
      } else if (a || b) {
        out.push_back({f.path + "." + path, a ? *a : json(), b ? *b : json(), f.on_resume});
      }
    }
  }
}

void compare_field(const json& saved, const json& now, const FieldInfo& f, const std::string& prefix, std::vector<ConfigChange>& out) {
  json before = value_or_default(saved, f), after = value_or_default(now, f);
  if (before == after) return;
  if (f.kind == FieldKind::operands) return compare_operands(before, after, f, out);
  const bool entries = f.kind == FieldKind::object_list && before.is_array() && after.is_array() && before.size() == after.size();
  if (!entries) {
    out.push_back({prefix + f.path, std::move(before), std::move(after), f.on_resume});
    return;
  }
  for (size_t i = 0; i < before.size(); ++i) {
    const std::string entry = fmt::format("{}{}.{}.", prefix, f.path, i);
    for (const FieldInfo& e : f.element) compare_field(before[i], after[i], e, entry, out);
  }
}

// Keys of a saved config that have no row, and the values below them.
void find_unknown(const json& value, const std::string& path, std::vector<ConfigChange>& out) {
  if (find_field(path)) return;
  const auto below = [&](const FieldInfo& f) { return f.path.rfind(path + ".", 0) == 0; };
  const bool section = path.empty() || std::any_of(run_fields().begin(), run_fields().end(), below);
  if (!section || !value.is_object()) {
    if (!section) out.push_back({path, value, {}, OnResume::warn});
    return;
  }
  for (const auto& [key, child] : value.items()) find_unknown(child, path.empty() ? key : path + "." + key, out);
}

[[noreturn]] void refuse(const ConfigChange& c, size_t more, const std::string& why, const std::string& fix) {
  const std::string others = more ? fmt::format("; {} more like it", more) : "";
  throw Error(ExitCode::config, fmt::format("the run was started with {}, resumed with {}{}{}", change_text(c.before), change_text(c.now), why, others),
              printable(c.path, 160), fix);
}

}  // namespace

std::vector<ConfigChange> config_changes(const json& saved, const json& now) {
  std::vector<ConfigChange> out;
  for (const FieldInfo& f : run_fields()) compare_field(saved, now, f, "", out);
  find_unknown(saved, "", out);
  return out;
}

void check_config_changes(std::vector<ConfigChange>& changes, const std::vector<std::string>& allowed) {
  for (const std::string& path : allowed) {
    if (find_field(path)) continue;
    std::vector<std::string> paths;
    for (const FieldInfo& f : run_fields()) paths.push_back(f.path);
    throw Error(ExitCode::config, fmt::format("\"{}\" is no key of the config", printable(path)), "--allow-config-change",
                fmt::format("did you mean {}?", nearest(path, paths)));
  }
  // A list's entry is allowed with the list.
  for (ConfigChange& c : changes) {
    const auto names = [&](const std::string& path) { return c.path == path || c.path.rfind(path + ".", 0) == 0; };
    c.allowed = c.on_resume == OnResume::forbidden && std::any_of(allowed.begin(), allowed.end(), names);
  }
  const auto refused = [](OnResume kind) { return [kind](const ConfigChange& c) { return c.on_resume == kind && !c.allowed; }; };
  for (const OnResume kind : {OnResume::fixed, OnResume::forbidden}) {
    const auto first = std::find_if(changes.begin(), changes.end(), refused(kind));
    if (first == changes.end()) continue;
    const auto more = static_cast<size_t>(std::count_if(first + 1, changes.end(), refused(kind)));
    if (kind == OnResume::fixed) refuse(*first, more, ", but the checkpoint's tensors have the shape of the old value", "keep the old value, or start a new run");
    // What --allow-config-change takes is the field, not an entry of its list.
    std::string field = first->path;
    while (!find_field(field)) field.resize(field.rfind('.'));
    refuse(*first, more, "", fmt::format("keep the old value, start a new run with --init-from, or add --allow-config-change {}", field));
  }
}

std::string change_text(const json& value) {
  if (value.is_null()) return "-";
  if (value.is_array() && !value.empty() && value[0].is_object()) return fmt::format("a list of {}", value.size());   // entries are compared where they are as many
  return printable(value.dump(-1, ' ', true, json::error_handler_t::replace), 60);
}

}  // namespace octet
