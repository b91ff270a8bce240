#include "data/datatrove.h"

#include <fmt/format.h>

#include <charconv>
#include <filesystem>

namespace octet::data {
namespace {
const char* const datatrove_fix = "write the files again with datatrove, or copy them again";

std::optional<int64_t> whole_number(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

std::string_view take_line(std::string_view& rest) {
  const size_t end = std::min(rest.find('\n'), rest.size());
  std::string_view line = rest.substr(0, end);
  rest.remove_prefix(std::min(end + 1, rest.size()));
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

// Without metadata the bytes a token follow from the number of tokens that the index ends with.
TokenType type_from_sizes(const ByteReader& ds, const ByteReader& index, uint64_t tokens) {
  for (const TokenType type : {TokenType::u16, TokenType::u32}) {
    const auto item = static_cast<uint64_t>(size_bytes(type));
    if (ds.bytes % item == 0 && ds.bytes / item == tokens) return type;
  }
  refuse_file(index.name, fmt::format("ends at token {}, which fits the {} bytes of {} with neither 2 nor 4 bytes a token", tokens, ds.bytes, ds.name), datatrove_fix);
}
}  // namespace

DatatroveMetadata parse_datatrove_metadata(const ByteReader& reader) {
  constexpr uint64_t longest = 64 << 10;
  if (reader.bytes > longest) refuse_file(reader.name, fmt::format("has {} bytes, too many for the metadata of a .ds file", reader.bytes), datatrove_fix);
  const std::string text = reader.text();
  std::string_view rest = text;
  const std::string_view head = take_line(rest);
  const size_t bar = head.rfind('|');
  const auto size = bar == std::string_view::npos ? std::nullopt : whole_number(head.substr(bar + 1));
  if (!size || (*size != 2 && *size != 4)) refuse_file(reader.name, "its first line is not TOKENIZER|BYTES with 2 or 4 bytes a token", datatrove_fix);
  const auto tokens = whole_number(take_line(rest));
  if (!tokens) refuse_file(reader.name, "its second line is not the number of tokens", datatrove_fix);
  return {*size == 2 ? TokenType::u16 : TokenType::u32, *tokens, std::string(head.substr(0, bar))};
}

TokenLayout parse_datatrove(const ByteReader& ds, const ByteReader& index, const std::optional<DatatroveMetadata>& metadata) {
  if (index.bytes == 0 || index.bytes % 8 != 0) {
    refuse_file(index.name, fmt::format("has {} bytes, not 8 for each of one or more documents", index.bytes), datatrove_fix);
  }
  const auto documents = static_cast<int64_t>(index.bytes / 8);
  uint64_t last = 0;
  index.read_exact(index.bytes - 8, &last, 8);
  TokenLayout layout;
  layout.type = metadata ? metadata->type : type_from_sizes(ds, index, last);
  const auto item = static_cast<uint64_t>(size_bytes(layout.type));
  const uint64_t tokens = ds.bytes / item;
  if (metadata && (ds.bytes % item != 0 || tokens != static_cast<uint64_t>(metadata->tokens))) {
    refuse_file(ds.name, fmt::format("has {} bytes, but its metadata announces {} tokens of {}", ds.bytes, metadata->tokens, name(layout.type)), datatrove_fix);
  }
  if (last != tokens) refuse_file(index.name, fmt::format("ends at token {}, but {} has {} tokens", last, ds.name, tokens), datatrove_fix);
  layout.starts.reserve(static_cast<size_t>(documents) + 1);
  layout.document_ends.reserve(static_cast<size_t>(documents) + 1);
  constexpr uint64_t longest = std::numeric_limits<int32_t>::max();
  each_value<uint64_t>(index, 0, documents, [&](int64_t i, uint64_t end) {
    const auto begin = static_cast<uint64_t>(layout.tokens());
    if (end < begin || end > tokens) refuse_file(index.name, fmt::format("document {} ends at token {}, outside [{}, {}]", i, end, begin, tokens), datatrove_fix);
    if (end - begin > longest) refuse_file(index.name, fmt::format("document {} has 2^31 tokens or more", i), datatrove_fix);
    layout.add_document(static_cast<int64_t>(end - begin));
  });
  return layout;
}

void check_datatrove_loss(const ByteReader& loss, int64_t tokens) {
  if (loss.bytes != static_cast<uint64_t>(tokens)) {
    refuse_file(loss.name, fmt::format("has {} bytes, not one for each of the {} tokens", loss.bytes, tokens), datatrove_fix);
  }
  each_value<uint8_t>(loss, 0, tokens, [&](int64_t i, uint8_t value) {
    if (value == 1) return;
    refuse_file(loss.name, fmt::format("masks the loss of token {} (byte {}), and masks by token are not supported", i, static_cast<int>(value)),
        "remove the .loss file to train on every token, or write text without masked parts");
  });
}

File open_datatrove(const std::string& path, TokenLayout& layout) {
  File tokens = File::open_for_read(path, ExitCode::data, "give the path of the .ds file");
  const File index = File::open_for_read(path + ".index", ExitCode::data,
      fmt::format("{} needs its index of documents beside it; or set format raw_u16 or raw_u32", path));
  std::optional<DatatroveMetadata> metadata;
  std::error_code unreadable;
  if (std::filesystem::exists(path + ".metadata", unreadable)) {
    const File file = File::open_for_read(path + ".metadata", ExitCode::data, "check its permissions");
    metadata = parse_datatrove_metadata(ByteReader::of(file));
  }
  layout = parse_datatrove(ByteReader::of(tokens), ByteReader::of(index), metadata);
  if (std::filesystem::exists(path + ".loss", unreadable)) {
    const File loss = File::open_for_read(path + ".loss", ExitCode::data, "check its permissions");
    check_datatrove_loss(ByteReader::of(loss), layout.tokens());
  }
  return tokens;
}

}  // namespace octet::data
