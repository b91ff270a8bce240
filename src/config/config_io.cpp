#include "config/config_io.h"

#include <fmt/format.h>

#include <charconv>

#include "config/field_values.h"
#include "config/nearest.h"

namespace octet {
namespace {

std::vector<std::string> split_path(const std::string& path, const std::string& origin) {
  std::vector<std::string> keys;
  for (size_t begin = 0;;) {
    const size_t dot = path.find('.', begin);
    keys.push_back(path.substr(begin, dot == std::string::npos ? dot : dot - begin));
    if (keys.back().empty()) {
      throw Error(ExitCode::config, fmt::format("\"{}\" is not a config path", printable(path)), origin, "write it like optim.lr");
    }
    if (dot == std::string::npos) return keys;
    begin = dot + 1;
  }
}

size_t list_index(const nlohmann::json& list, const std::string& key, const std::string& path, const std::string& origin) {
  size_t index = 0;
  const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), index);
  if (error != std::errc() || end != key.data() + key.size() || index >= list.size()) {
    throw Error(ExitCode::config, fmt::format("\"{}\" of {} is no entry of a list of {}", printable(key), printable(path), list.size()), origin,
                list.empty() ? "give the whole list" : fmt::format("entries are numbered 0 to {}", list.size() - 1));
  }
  return index;
}

}  // namespace

void ConfigTree::merge(const nlohmann::json& patch, const Origins& patch_origins) {
  values.merge_patch(patch);
  for (const auto& [path, origin] : patch_origins) origins[path] = origin;
}

void ConfigTree::merge_file(const std::string& path) {
  Origins from;
  nlohmann::json patch = load_config_file(path, &from);
  // "$schema" tells an editor what to check by; it is not part of the config.
  if (const auto schema = patch.find("$schema"); schema != patch.end() && schema->is_string()) patch.erase(schema);
  merge(patch, from);
}

void ConfigTree::set(const std::string& path, nlohmann::json value, const std::string& origin) {
  const std::vector<std::string> keys = split_path(path, origin);
  nlohmann::json* at = &values;
  for (size_t i = 0; i < keys.size(); ++i) {
    const bool last = i + 1 == keys.size();
    if (at->is_null()) *at = nlohmann::json::object();
    if (at->is_array()) {
      const size_t index = list_index(*at, keys[i], path, origin);
      if (last && value.is_null()) {
        at->erase(index);
        break;
      }
      at = &(*at)[index];
    } else if (at->is_object()) {
      if (last && value.is_null()) {
        at->erase(keys[i]);
        break;
      }
      at = &(*at)[keys[i]];
    } else {
      throw Error(ExitCode::config, fmt::format("nothing stands below \"{}\" in {}: it is a single value", printable(keys[i - 1]), printable(path)),
                  origin);
    }
    if (last) *at = std::move(value);
  }
  // Origins below this path are of values that are gone.
  for (auto it = origins.lower_bound(path + "."); it != origins.end() && it->first.rfind(path + ".", 0) == 0;) it = origins.erase(it);
  origins[path] = origin;
}

void ConfigTree::set_expression(const std::string& expression) {
  const size_t equal = expression.find('=');
  if (equal == std::string::npos) {
    throw Error(ExitCode::usage, fmt::format("\"{}\" has no value", printable(expression)), "--set",
                "write --set path=value, for example --set optim.lr=0.0005");
  }
  const std::string path = expression.substr(0, equal), text = expression.substr(equal + 1);
  const std::string origin = "--set " + printable(path);
  nlohmann::json value = text;
  if (nlohmann::json::accept(text)) {
    // Parsed again inside an object, by the strict reader: duplicate keys count here too.
    nlohmann::json parsed = parse_config_text("{\"value\": " + text + "}", origin)["value"];
    const FieldInfo* field = find_field(path);
    const bool keep_text = field && field->kind == FieldKind::text && !parsed.is_string() && !parsed.is_null();
    if (!keep_text) value = std::move(parsed);
  }
  set(path, std::move(value), origin);
}

RunConfig from_json(const nlohmann::json& values, const Origins& origins) {
  RunConfig config;
  config_detail::read_object(config, values, run_fields(), Place{"", &origins});
  return config;
}

nlohmann::json to_json(const RunConfig& config) { return config_detail::write_object(config, run_fields()); }

}  // namespace octet
