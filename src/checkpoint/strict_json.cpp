#include "checkpoint/strict_json.h"

#include <fmt/format.h>

#include <unordered_set>
#include <vector>

#include "core/error.h"

namespace octet {
namespace {

struct Frame {
  std::unordered_set<std::string> keys;
  size_t elements = 0;
};

// Follows the parser and refuses what a plain parse would accept silently.
class Guard {
 public:
  Guard(const std::string& where, const JsonLimits& limits) : where_(where), limits_(limits) {}

  void on_event(nlohmann::json::parse_event_t event, const nlohmann::json& parsed) {
    using Event = nlohmann::json::parse_event_t;
    switch (event) {
      case Event::object_start:
      case Event::array_start:
        count_element();
        if (stack_.size() >= limits_.max_depth) fail(fmt::format("JSON is nested deeper than {}", limits_.max_depth));
        stack_.emplace_back();
        break;
      case Event::object_end:
      case Event::array_end: stack_.pop_back(); break;
      case Event::value: count_element(); break;
      case Event::key: {
        const auto& key = parsed.get_ref<const std::string&>();
        if (!stack_.back().keys.insert(key).second) fail(fmt::format("duplicate JSON key {}", printable(key)));
        stack_.back().elements = 0;  // a member is counted like a one-element array
        break;
      }
    }
  }

 private:
  void count_element() {
    if (!stack_.empty() && ++stack_.back().elements > limits_.max_array) fail(fmt::format("JSON array has more than {} elements", limits_.max_array));
  }
  [[noreturn]] void fail(std::string what) const { throw Error(ExitCode::checkpoint, std::move(what), where_); }

  const std::string& where_;
  const JsonLimits& limits_;
  std::vector<Frame> stack_;
};

}  // namespace

nlohmann::json parse_strict_json(std::string_view text, const std::string& where, const JsonLimits& limits) {
  Guard guard(where, limits);
  const auto follow = [&](int, nlohmann::json::parse_event_t event, nlohmann::json& parsed) {
    guard.on_event(event, parsed);
    return true;
  };
  try {
    return nlohmann::json::parse(text.begin(), text.end(), follow);
  } catch (const nlohmann::json::exception& e) {
    // The parser quotes the offending token, which can be as long as the file.
    throw Error(ExitCode::checkpoint, fmt::format("not valid JSON: {}", std::string(e.what()).substr(0, 200)), where);
  }
}

std::string printable(std::string_view name) {
  constexpr size_t shown = 100;
  std::string text = nlohmann::json(std::string(name.substr(0, shown))).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  return name.size() > shown ? text + "..." : text;
}

bool is_count(const nlohmann::json& value) {
  return value.is_number_unsigned() && value.get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
}

}  // namespace octet
