#include "data/token_source.h"

#include <fmt/format.h>
#include <glob.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <limits>
#include <set>

#include "core/check.h"
#include "data/datatrove.h"
#include "data/indexed_dataset.h"
#include "data/llmc.h"
#include "data/raw_tokens.h"

namespace octet::data {
namespace {
constexpr int64_t piece = 4096;  // values read at once
constexpr std::array<std::string_view, 6> format_names = {"auto", "megatron", "llmc", "datatrove", "raw_u16", "raw_u32"};

bool exists(const std::string& path) {
  std::error_code unreadable;
  return std::filesystem::exists(path, unreadable);
}

// Removes `suffix` from the end of path; says whether it was there.
bool strip(std::string& path, std::string_view suffix) {
  if (!path.ends_with(suffix)) return false;
  path.resize(path.size() - suffix.size());
  return true;
}

// The source that a matched file belongs to; empty when it is none.
std::string source_of_match(std::string path) {
  if (path.ends_with(".meta.json")) return "";
  if (strip(path, ".idx")) return path;
  for (std::string_view companion : {".index", ".metadata", ".loss"}) {
    if (path.ends_with(std::string(".ds") + std::string(companion))) {
      strip(path, companion);
      return path;
    }
  }
  std::string prefix = path;
  if (strip(prefix, ".bin") && exists(prefix + ".idx")) return prefix;
  return path;
}

TokenFormat recognise(const std::string& path) {
  if (exists(path + ".idx")) return TokenFormat::megatron;
  if (path.ends_with(".ds") || exists(path + ".ds")) return TokenFormat::datatrove;
  std::error_code unreadable;
  if (!std::filesystem::is_regular_file(path, unreadable)) return TokenFormat::megatron;  // whose reader says what is missing
  const File file = File::open_for_read(path, ExitCode::data, "check the path");
  const ByteReader reader = ByteReader::of(file);
  if (looks_like_llmc(reader)) return TokenFormat::llmc;
  std::string prefix = path;
  if ((strip(prefix, ".bin") || strip(prefix, ".idx")) && exists(prefix + ".idx")) {
    refuse_file(path, "is one file of a Megatron pair", fmt::format("give the path without .idx/.bin: {}", prefix));
  }
  refuse_file(path, "is no token file that says its format", "make token files of a text with `octet data build`; a file of nothing but tokens of 2 or 4 bytes needs its format, raw_u16 or raw_u32");
}
}  // namespace

TokenFormat token_format(const std::string& name) {
  const auto found = std::find(format_names.begin(), format_names.end(), name);
  if (found == format_names.end()) {
    throw Error(ExitCode::config, fmt::format("'{}' is no format of token files", name), "", fmt::format("give one of {}", fmt::join(format_names, ", ")));
  }
  return static_cast<TokenFormat>(found - format_names.begin());
}

std::string_view name(TokenFormat format) { return format_names[static_cast<size_t>(format)]; }

std::vector<std::string> expand_token_path(const std::string& path) {
  if (path.find_first_of("*?") == std::string::npos) return {path};
  std::string pattern;
  for (char c : path) {
    if (c == '[' || c == ']' || c == '\\') pattern += '\\';  // only * and ? are special
    pattern += c;
  }
  glob_t found{};
  const int status = ::glob(pattern.c_str(), 0, nullptr, &found);
  std::set<std::string> sources;
  for (size_t i = 0; status == 0 && i < found.gl_pathc; ++i) {
    if (std::string source = source_of_match(found.gl_pathv[i]); !source.empty()) sources.insert(std::move(source));
  }
  ::globfree(&found);
  if (sources.empty()) refuse_file(path, "matches no file", "check the folder and the pattern; * and ? are the only wildcards");
  return {sources.begin(), sources.end()};
}

TokenSource TokenSource::open(const std::string& path, TokenFormat format, int64_t eod_id) {
  TokenSource source;
  source.path_ = path;
  for (const std::string& file : expand_token_path(path)) source.add_path(file, format, eod_id);
  return source;
}

void TokenSource::add_path(const std::string& path, TokenFormat format, int64_t eod_id) {
  if (format == TokenFormat::automatic) format = recognise(path);
  if (format == TokenFormat::megatron) {
    TokenLayout layout;
    File bin = open_megatron(path, layout);
    return add(std::move(bin), format, std::move(layout));
  }
  if (format == TokenFormat::datatrove) {
    const std::string tokens = path.ends_with(".ds") || !exists(path + ".ds") ? path : path + ".ds";
    TokenLayout layout;
    File file = open_datatrove(tokens, layout);
    return add(std::move(file), format, std::move(layout));
  }
  File file = File::open_for_read(path, ExitCode::data, "check the path");
  const ByteReader reader = ByteReader::of(file);
  TokenLayout layout = format == TokenFormat::llmc ? parse_llmc(reader, eod_id)
                                                   : raw_layout(reader, format == TokenFormat::raw_u16 ? TokenType::u16 : TokenType::u32, eod_id);
  add(std::move(file), format, std::move(layout));
}

void TokenSource::add(File file, TokenFormat format, TokenLayout layout) {
  if (layout.tokens() > std::numeric_limits<int64_t>::max() / 8 - tokens()) refuse_file(path_, "has 2^60 tokens or more", "give fewer files");
  const int64_t first_token = tokens(), first_sequence = sequences();
  if (parts_.empty()) {
    starts_ = std::move(layout.starts);
    document_ends_ = std::move(layout.document_ends);
  } else {
    for (size_t i = 1; i < layout.starts.size(); ++i) starts_.push_back(first_token + layout.starts[i]);
    for (size_t i = 1; i < layout.document_ends.size(); ++i) document_ends_.push_back(first_sequence + layout.document_ends[i]);
  }
  parts_.push_back({std::move(file), format, layout.type, layout.first_byte, first_token, first_sequence});
}

int64_t TokenSource::sequence_of(int64_t position) const {
  OCTET_CHECK(position >= 0 && position < tokens(), "token {} of {}", position, tokens());
  return std::upper_bound(starts_.begin(), starts_.end(), position) - starts_.begin() - 1;
}

int64_t TokenSource::token_bytes() const {
  int64_t bytes = 0;
  for (size_t p = 0; p < parts_.size(); ++p) {
    const int64_t end = p + 1 < parts_.size() ? parts_[p + 1].first_token : tokens();
    bytes += (end - parts_[p].first_token) * size_bytes(parts_[p].type);
  }
  return bytes;
}

// The last of the parts that begin at or before the position (files may be empty).
const TokenSource::Part& TokenSource::part_of(int64_t position) const {
  const auto after = std::upper_bound(parts_.begin(), parts_.end(), position, [](int64_t p, const Part& part) { return p < part.first_token; });
  return *(after - 1);
}

int64_t TokenSource::read_ids(int64_t position, int64_t most, int64_t* out) const {
  const Part& part = part_of(position);
  const int64_t end = &part == &parts_.back() ? tokens() : (&part + 1)->first_token;
  const int64_t count = std::min({most, piece, end - position}), item = size_bytes(part.type);
  std::array<unsigned char, static_cast<size_t>(piece) * 8> raw;
  part.file.read_exact(raw.data(), static_cast<size_t>(count * item), part.first_byte + static_cast<uint64_t>((position - part.first_token) * item));
  widen_tokens(part.type, raw.data(), count, out);
  return count;
}

void TokenSource::read_flat(int64_t position, int64_t count, int32_t* out) const {
  OCTET_CHECK(position >= 0 && count >= 0 && position <= tokens() && count <= tokens() - position, "tokens [{}, +{}) of {}", position, count,
      tokens());
  std::array<int64_t, static_cast<size_t>(piece)> ids;
  for (int64_t done = 0; done < count;) {
    const int64_t n = read_ids(position + done, count - done, ids.data());
    for (int64_t i = 0; i < n; ++i) {
      const int64_t id = ids[at(i)];
      if (id != static_cast<int32_t>(id)) throw_bad_token(position + done + i, id, int64_t{1} << 31);
      out[done + i] = static_cast<int32_t>(id);
    }
    done += n;
  }
}

void TokenSource::read(int64_t sequence, int64_t offset, int64_t count, int32_t* out) const {
  OCTET_CHECK(sequence >= 0 && sequence < sequences(), "sequence {} of {}", sequence, sequences());
  OCTET_CHECK(offset >= 0 && count >= 0 && offset <= length(sequence) && count <= length(sequence) - offset,
      "tokens [{}, +{}) of the {} of sequence {}", offset, count, length(sequence), sequence);
  read_flat(start(sequence) + offset, count, out);
}

void TokenSource::scan(const std::function<void(int64_t, std::span<const int64_t>)>& visit) const {
  std::array<int64_t, static_cast<size_t>(piece)> ids;
  for (int64_t position = 0; position < tokens();) {
    const int64_t n = read_ids(position, piece, ids.data());
    visit(position, std::span<const int64_t>(ids.data(), static_cast<size_t>(n)));
    position += n;
  }
}

int64_t TokenSource::max_token() const {
  int64_t largest = tokens() > 0 ? std::numeric_limits<int64_t>::min() : -1;
  scan([&](int64_t, std::span<const int64_t> ids) { largest = std::max(largest, *std::max_element(ids.begin(), ids.end())); });
  return largest;
}

void TokenSource::check_tokens(int64_t vocab_size) const {
  scan([&](int64_t position, std::span<const int64_t> ids) {
    for (size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] < 0 || ids[i] >= vocab_size) throw_bad_token(position + static_cast<int64_t>(i), ids[i], vocab_size);
    }
  });
}

void TokenSource::throw_bad_token(int64_t position, int64_t id, int64_t vocab_size) const {
  const int64_t sequence = sequence_of(position);
  const Part& part = part_of(position);
  throw Error(ExitCode::data, fmt::format("sequence {}, position {}: token id {} is outside the vocabulary of {} ids", sequence - part.first_sequence,
      position - start(sequence), id, vocab_size), part.file.path().native(),
      "the tokens were made for another vocabulary: set vocab_size to theirs or build the files with the model's tokenizer");
}

}  // namespace octet::data
