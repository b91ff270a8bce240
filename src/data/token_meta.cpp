#include "data/token_meta.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/file_io.h"

namespace octet::data {
namespace {
using nlohmann::json;
constexpr uint64_t most_meta_bytes = 65536;

class Reader {
 public:
  Reader(const json& value, const std::string& where) : value_(value), where_(where) {}
  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ExitCode::data, what, where_, "remove the file, or build the token files again");
  }
  std::string text(const char* key) const {
    if (!value_.at(key).is_string()) fail(fmt::format("{} is no string", key));
    return value_.at(key).get<std::string>();
  }
  std::string xxh64(const char* key) const {
    std::string hex = text(key);
    if (hex.size() != 16 || hex.find_first_not_of("0123456789abcdef") != std::string::npos) fail(fmt::format("{} is not 16 hexadecimal digits", key));
    return hex;
  }
  int64_t count(const char* key) const {
    const json& v = value_.at(key);
    if (!v.is_number_unsigned() || v.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()}) fail(fmt::format("{} is no count", key));
    return v.get<int64_t>();
  }

 private:
  const json& value_;
  const std::string& where_;
};
}  // namespace

std::string xxh64_hex(std::string_view bytes) { return fmt::format("{:016x}", static_cast<uint64_t>(XXH64(bytes.data(), bytes.size(), 0))); }

std::string to_json(const TokenMeta& meta) {
  nlohmann::ordered_json out;
  out["format"] = "octet-tokens";
  out["version"] = 1;
  out["tokenizer"] = meta.tokenizer;
  out["tokenizer_file"] = meta.tokenizer_file;
  out["tokenizer_xxh64"] = meta.tokenizer_xxh64;
  out["vocab_size"] = meta.vocab_size;
  out["eod_id"] = nullptr;
  if (meta.eod_id) out["eod_id"] = *meta.eod_id;
  out["documents"] = meta.documents;
  out["tokens"] = meta.tokens;
  if (!meta.build_xxh64.empty()) out["build_xxh64"] = meta.build_xxh64;
  return out.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

TokenMeta parse_token_meta(std::string_view text, const std::string& where) {
  static constexpr std::array<std::string_view, 9> keys = {"format", "version", "tokenizer", "tokenizer_file", "tokenizer_xxh64", "vocab_size", "eod_id",
                                                           "documents", "tokens"};
  json value;
  const Reader reader(value, where);
  if (text.size() > most_meta_bytes) reader.fail(fmt::format("has more than {} bytes", most_meta_bytes));
  size_t members = 0;
  try {
    value = json::parse(text, [&](int depth, json::parse_event_t event, json&) {
      if (depth > 2) throw Error(ExitCode::data, "nested values", where, "remove the file, or build the token files again");
      members += event == json::parse_event_t::key ? 1 : 0;
      return true;
    });
  } catch (const json::exception& error) {
    reader.fail(fmt::format("not valid JSON: {}", std::string(error.what()).substr(0, 200)));
  }
  if (!value.is_object()) reader.fail("not a JSON object");
  for (std::string_view key : keys) {
    if (!value.contains(key)) reader.fail(fmt::format("the key '{}' is missing", key));
  }
  const size_t expected = keys.size() + (value.contains("build_xxh64") ? 1 : 0);
  if (members != expected || value.size() != expected) reader.fail("has unknown or doubled keys");
  if (value.at("format") != "octet-tokens" || value.at("version") != 1) reader.fail("not of format octet-tokens, version 1");

  TokenMeta meta;
  meta.tokenizer = reader.text("tokenizer");
  meta.tokenizer_file = reader.text("tokenizer_file");
  meta.tokenizer_xxh64 = reader.xxh64("tokenizer_xxh64");
  meta.vocab_size = reader.count("vocab_size");
  if (!value.at("eod_id").is_null()) meta.eod_id = reader.count("eod_id");
  meta.documents = reader.count("documents");
  meta.tokens = reader.count("tokens");
  if (value.contains("build_xxh64")) meta.build_xxh64 = reader.xxh64("build_xxh64");
  if (meta.tokenizer != "byte" && meta.tokenizer != "sentencepiece" && meta.tokenizer != "hf-bpe") reader.fail("tokenizer is not byte, sentencepiece or hf-bpe");
  if (meta.vocab_size < 1 || meta.vocab_size > int64_t{1} << 31) reader.fail("vocab_size is not from 1 to 2^31");
  if (meta.eod_id && *meta.eod_id >= meta.vocab_size) reader.fail("eod_id is not below vocab_size");
  return meta;
}

std::optional<TokenMeta> read_token_meta(const std::string& prefix) {
  const std::string path = prefix + ".meta.json";
  std::error_code error;
  if (!std::filesystem::exists(std::filesystem::symlink_status(path, error))) return std::nullopt;
  return parse_token_meta(read_file(path, most_meta_bytes, ExitCode::data), path);
}

}  // namespace octet::data
