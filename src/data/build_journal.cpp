#include "data/build_journal.h"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/file_io.h"

namespace octet::data {
namespace {
using nlohmann::json;
constexpr uint64_t most_journal_bytes = uint64_t{16} << 20;  // the list of inputs may be long
constexpr int version = 1;

[[noreturn]] void bad_journal(const std::string& what, const std::string& where) {
  throw Error(ExitCode::data, what, where, "remove it and the .tmp files beside it, and build anew without --resume");
}

int64_t count(const json& object, const char* key, const std::string& where) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number_unsigned() || found->get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max() / 8}) {
    bad_journal(fmt::format("{} is missing or no count", key), where);
  }
  return found->get<int64_t>();
}
}  // namespace

std::string to_json(const BuildProgress& p) {
  nlohmann::ordered_json out;
  out["format"] = "octet-build";
  out["version"] = version;
  out["publishing"] = p.publishing;
  out["input"] = p.position.input;
  out["offset"] = p.position.offset;
  out["line"] = p.position.line;
  out["documents"] = p.documents;
  out["tokens"] = p.tokens;
  out["empty_documents"] = p.empty_documents;
  out["bytes_read"] = p.bytes_read;
  out["job"] = p.job;
  return out.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

BuildProgress parse_build_progress(std::string_view text, const std::string& where) {
  json in;
  try {
    in = json::parse(text, [&](int depth, json::parse_event_t, json&) {
      if (depth > 2) bad_journal("nested values", where);
      return true;
    });
  } catch (const json::exception& error) {
    bad_journal(fmt::format("not valid JSON: {}", std::string(error.what()).substr(0, 200)), where);
  }
  if (!in.is_object() || in.value("format", json()) != "octet-build" || in.value("version", json()) != version) bad_journal("no journal of a build", where);
  BuildProgress p;
  const auto publishing = in.find("publishing"), job = in.find("job");
  if (publishing == in.end() || !publishing->is_boolean() || job == in.end() || !job->is_string()) bad_journal("publishing or job is missing", where);
  p.publishing = publishing->get<bool>();
  p.job = job->get<std::string>();
  p.position = {count(in, "input", where), count(in, "offset", where), count(in, "line", where)};
  p.documents = count(in, "documents", where);
  p.tokens = count(in, "tokens", where);
  p.empty_documents = count(in, "empty_documents", where);
  p.bytes_read = count(in, "bytes_read", where);
  return p;
}

std::string journal_path(const std::string& prefix) { return prefix + ".resume.json"; }

std::optional<BuildProgress> read_journal(const std::string& prefix) {
  const std::string path = journal_path(prefix);
  std::error_code error;
  if (!std::filesystem::exists(std::filesystem::symlink_status(path, error))) return std::nullopt;
  return parse_build_progress(read_file(path, most_journal_bytes, ExitCode::data), path);
}

void write_journal(const std::string& prefix, const BuildProgress& progress) { write_file_atomic(journal_path(prefix), to_json(progress), ExitCode::data); }

void remove_journal(const std::string& prefix) {
  remove_leftovers(journal_path(prefix));
  ::unlink(journal_path(prefix).c_str());
}

}  // namespace octet::data
