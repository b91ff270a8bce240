// What the parsers of token files share: a view of bytes to parse from, and what they find. The parsers are free functions on a
// ByteReader (parse_megatron_index, parse_llmc, parse_datatrove, raw_layout), so that they take files and memory alike.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/file_io.h"

namespace octet::data {

// Integer types of tokens, with the codes of a Megatron index. Its floating-point codes 6 and 7 are no token types; u32 stands in no
// index (datatrove, llm.c and raw files have it).
enum class TokenType : uint8_t { u8 = 1, i8 = 2, i16 = 3, i32 = 4, i64 = 5, u16 = 8, u32 = 64 };

int64_t size_bytes(TokenType type);
std::string_view name(TokenType type);          // NumPy's names: "uint16", ...
TokenType token_type_for(int64_t vocab_size);   // Megatron's rule: uint16 below 65,500 ids, else int32

// `count` stored little-endian tokens to 64-bit ids.
void widen_tokens(TokenType type, const unsigned char* from, int64_t count, int64_t* out);

// Random access to an outside file's bytes. read_exact throws when [offset, offset + n) is not all there.
struct ByteReader {
  uint64_t bytes = 0;
  std::string name;   // for messages
  std::function<void(uint64_t offset, void* out, size_t n)> read_exact;

  static ByteReader of(const File& file);                                          // which must outlive it
  static ByteReader of(std::span<const unsigned char> memory, std::string name);   // likewise
  // Everything; the caller has checked that `bytes` is small.
  std::string text() const;
};

// Error(ExitCode::data) about the file.
[[noreturn]] void refuse_file(const std::string& name, const std::string& what, const std::string& fix);

// Calls visit(i, value) for the `count` little-endian values at byte `offset`. The caller has checked that they are inside.
template <class T, class Visit>
void each_value(const ByteReader& reader, uint64_t offset, int64_t count, Visit&& visit) {
  constexpr int64_t piece = 4096;
  std::array<T, static_cast<size_t>(piece)> values;
  for (int64_t first = 0; first < count; first += piece) {
    const int64_t n = std::min(piece, count - first);
    reader.read_exact(offset + static_cast<uint64_t>(first) * sizeof(T), values.data(), static_cast<size_t>(n) * sizeof(T));
    for (int64_t i = 0; i < n; ++i) visit(first + i, values[static_cast<size_t>(i)]);
  }
}

// Where the tokens stand and how they are cut. A sequence has fewer than 2^31 tokens (Megatron's lengths are int32).
struct TokenLayout {
  TokenType type = TokenType::u16;
  uint64_t first_byte = 0;                   // of the first token
  std::vector<int64_t> starts{0};            // [sequences + 1], tokens
  std::vector<int64_t> document_ends{0};     // [documents + 1], sequences

  int64_t tokens() const { return starts.back(); }
  int64_t sequences() const { return static_cast<int64_t>(starts.size()) - 1; }
  // Adds a document of one sequence.
  void add_document(int64_t length) {
    starts.push_back(starts.back() + length);
    document_ends.push_back(sequences());
  }
};

}  // namespace octet::data
