#include "data/build_parse.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "data/unicode.h"

namespace octet::data {
namespace {
namespace dom = simdjson::dom;
constexpr const char* jsonl_fix = "give one JSON object a line, with its text under the key named by --json-key";

const char* type_name(dom::element_type type) {
  switch (type) {
    case dom::element_type::ARRAY: return "array";
    case dom::element_type::OBJECT: return "object";
    case dom::element_type::STRING: return "string";
    case dom::element_type::BOOL: return "boolean";
    case dom::element_type::NULL_VALUE: return "null";
    default: return "number";
  }
}

[[noreturn]] void bad_text(const std::string& what, const std::string& where, const char* fix = jsonl_fix) { throw Error(ExitCode::data, what, where, fix); }

void check_count(int64_t seen, const std::string& key, const std::string& where) {
  if (seen > 1) bad_text(fmt::format("the key '{}' occurs {} times", key, seen), where, "keep one of them");
  if (seen == 0) bad_text(fmt::format("has no key '{}'", key), where);
}

// For lines with numbers that simdjson does not hold (integers beyond 64 bits), which are valid JSON all the same.
std::string text_by_nlohmann(std::string_view line, const std::string& key, const std::string& where) {
  using nlohmann::json;
  int64_t seen = 0;
  json object;
  try {
    object = json::parse(line, [&](int depth, json::parse_event_t event, json& parsed) {
      if (depth == 1 && event == json::parse_event_t::key && parsed == key) ++seen;
      return true;
    });
  } catch (const json::exception& error) {
    bad_text(fmt::format("not valid JSON: {}", std::string(error.what()).substr(0, 200)), where);
  }
  if (!object.is_object()) bad_text(fmt::format("not a JSON object but {}", object.type_name()), where);
  check_count(seen, key, where);
  json& value = object[key];
  if (!value.is_string()) bad_text(fmt::format("the value of '{}' is no string but {}", key, value.type_name()), where);
  return std::move(value.get_ref<std::string&>());
}
}  // namespace

struct DocumentParser::Json {
  dom::parser parser;
};

DocumentParser::DocumentParser(std::string json_key, InvalidUtf8 invalid)
    : json_(std::make_unique<Json>()), key_(std::move(json_key)), invalid_(invalid) {}
DocumentParser::~DocumentParser() = default;
DocumentParser::DocumentParser(DocumentParser&&) noexcept = default;

std::string_view DocumentParser::line_text(std::string_view line, const TextChunk& chunk, const TextPiece& piece) {
  // simdjson reads, but does not heed, up to SIMDJSON_PADDING bytes behind the line: there is the next one, or the chunk's reserve.
  dom::element document;
  const auto where = [&] { return fmt::format("{}:{}", chunk.path, piece.at); };
  const auto error = json_->parser.parse(line.data(), line.size(), false).get(document);
  if (error == simdjson::NUMBER_ERROR) {
    buffer_ = text_by_nlohmann(line, key_, where());
    return buffer_;
  }
  if (error != simdjson::SUCCESS) bad_text(fmt::format("not valid JSON: {}", simdjson::error_message(error)), where());
  dom::object object;
  if (document.get(object) != simdjson::SUCCESS) bad_text(fmt::format("not a JSON object but {}", type_name(document.type())), where());
  int64_t seen = 0;
  dom::element value;
  for (const auto& member : object) {
    if (member.key != key_) continue;
    value = member.value;
    ++seen;
  }
  check_count(seen, key_, where());
  std::string_view text;
  if (value.get(text) != simdjson::SUCCESS) bad_text(fmt::format("the value of '{}' is no string but {}", key_, type_name(value.type())), where());
  return text;
}

std::string_view DocumentParser::text(const TextChunk& chunk, const TextPiece& piece) {
  const std::string_view bytes = std::string_view(chunk.text).substr(piece.begin, piece.size);
  if (chunk.jsonl) {
    if (invalid_ != InvalidUtf8::replace || valid_utf8(bytes)) return line_text(bytes, chunk, piece);
    std::string repaired = replace_invalid_utf8(bytes);
    repaired.reserve(repaired.size() + simdjson::SIMDJSON_PADDING);
    return line_text(repaired, chunk, piece);
  }
  if (invalid_ == InvalidUtf8::keep || valid_utf8(bytes)) return bytes;
  if (invalid_ == InvalidUtf8::replace) {
    buffer_ = replace_invalid_utf8(bytes);
    return buffer_;
  }
  bad_text(fmt::format("not valid UTF-8 at byte {}", piece.at + static_cast<int64_t>(first_invalid_utf8(bytes))), chunk.path,
           "convert the file to UTF-8, or give --invalid-utf8 replace");
}

}  // namespace octet::data
