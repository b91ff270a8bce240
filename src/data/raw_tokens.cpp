#include "data/raw_tokens.h"

#include <fmt/format.h>

namespace octet::data {
namespace {

template <class T>
void cut(const ByteReader& reader, int64_t tokens, int64_t eod_id, TokenLayout& layout) {
  constexpr int64_t longest = std::numeric_limits<int32_t>::max();
  const auto add = [&](int64_t end) {
    const int64_t length = end - layout.tokens();
    if (length > longest) {
      refuse_file(reader.name, fmt::format("has {} tokens from token {} on without the end-of-document id {}; a document has fewer than 2^31", length,
          layout.tokens(), eod_id), "set data.eod_id to the id that ends documents in this file");
    }
    if (length > 0) layout.add_document(length);
  };
  each_value<T>(reader, layout.first_byte, tokens, [&](int64_t i, T id) {
    if (static_cast<int64_t>(id) == eod_id) add(i + 1);
  });
  add(tokens);
}

}  // namespace

TokenLayout find_documents(const ByteReader& reader, TokenType type, uint64_t first_byte, int64_t tokens, int64_t eod_id) {
  TokenLayout layout;
  layout.type = type;
  layout.first_byte = first_byte;
  if (type == TokenType::u16) cut<uint16_t>(reader, tokens, eod_id, layout);
  else cut<uint32_t>(reader, tokens, eod_id, layout);
  return layout;
}

TokenLayout raw_layout(const ByteReader& reader, TokenType type, int64_t eod_id) {
  const auto item = static_cast<uint64_t>(size_bytes(type));
  if (reader.bytes == 0) refuse_file(reader.name, "is empty", "give a file with tokens");
  if (reader.bytes % item != 0) {
    refuse_file(reader.name, fmt::format("has {} bytes, no whole number of tokens of {} bytes", reader.bytes, item),
        "check the format (raw_u16, raw_u32), or copy the file again");
  }
  return find_documents(reader, type, 0, static_cast<int64_t>(reader.bytes / item), eod_id);
}

}  // namespace octet::data
