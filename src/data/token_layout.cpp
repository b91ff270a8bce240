#include "data/token_layout.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>

#include "core/check.h"

namespace octet::data {
static_assert(std::endian::native == std::endian::little, "token files are little-endian and read by memcpy");

namespace {
template <class T>
void widen(const unsigned char* from, int64_t count, int64_t* out) {
  for (int64_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, from + static_cast<size_t>(i) * sizeof(T), sizeof(T));
    out[i] = static_cast<int64_t>(value);
  }
}
}  // namespace

int64_t size_bytes(TokenType type) {
  switch (type) {
    case TokenType::u8:
    case TokenType::i8: return 1;
    case TokenType::i16:
    case TokenType::u16: return 2;
    case TokenType::i32:
    case TokenType::u32: return 4;
    case TokenType::i64: return 8;
  }
  return 0;
}

std::string_view name(TokenType type) {
  switch (type) {
    case TokenType::u8: return "uint8";
    case TokenType::i8: return "int8";
    case TokenType::i16: return "int16";
    case TokenType::u16: return "uint16";
    case TokenType::i32: return "int32";
    case TokenType::u32: return "uint32";
    case TokenType::i64: return "int64";
  }
  return "";
}

TokenType token_type_for(int64_t vocab_size) { return vocab_size < 65500 ? TokenType::u16 : TokenType::i32; }

void widen_tokens(TokenType type, const unsigned char* from, int64_t count, int64_t* out) {
  switch (type) {
    case TokenType::u8: return widen<uint8_t>(from, count, out);
    case TokenType::i8: return widen<int8_t>(from, count, out);
    case TokenType::i16: return widen<int16_t>(from, count, out);
    case TokenType::u16: return widen<uint16_t>(from, count, out);
    case TokenType::i32: return widen<int32_t>(from, count, out);
    case TokenType::u32: return widen<uint32_t>(from, count, out);
    case TokenType::i64: return widen<int64_t>(from, count, out);
  }
}

ByteReader ByteReader::of(const File& file) {
  return {file.size_bytes(), file.path().string(), [&file](uint64_t offset, void* out, size_t n) { file.read_exact(out, n, offset); }};
}

ByteReader ByteReader::of(std::span<const unsigned char> memory, std::string name) {
  ByteReader reader{memory.size(), std::move(name), {}};
  reader.read_exact = [memory, where = reader.name](uint64_t offset, void* out, size_t n) {
    if (offset > memory.size() || n > memory.size() - offset) refuse_file(where, fmt::format("ends at byte {}", memory.size()), "give all of it");
    if (n > 0) std::memcpy(out, memory.data() + offset, n);
  };
  return reader;
}

std::string ByteReader::text() const {
  std::string out(static_cast<size_t>(bytes), '\0');
  if (!out.empty()) read_exact(0, out.data(), out.size());
  return out;
}

void refuse_file(const std::string& name, const std::string& what, const std::string& fix) { throw Error(ExitCode::data, what, name, fix); }

}  // namespace octet::data
