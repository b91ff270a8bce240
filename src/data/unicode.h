// Unicode for tokenizers: character classes of one pinned Unicode version (16.0), whatever ICU's own version is, normal forms of one pinned
// version (9.0), and UTF-8. The pins are those of the `tokenizers` package: its regular expressions (Oniguruma) know Unicode 16, its
// normalizer Unicode 9. Token ids must not depend on the system's ICU.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace octet::data {

// Character at `at` of valid UTF-8, and its length in bytes.
struct Utf8Char {
  uint32_t code = 0;
  uint32_t bytes = 0;
};

inline Utf8Char utf8_at(const char* at) {
  const auto b = [&](int i) { return static_cast<uint32_t>(static_cast<unsigned char>(at[i])); };
  if (b(0) < 0x80) return {b(0), 1};
  if (b(0) < 0xE0) return {(b(0) & 0x1F) << 6 | (b(1) & 0x3F), 2};
  if (b(0) < 0xF0) return {(b(0) & 0x0F) << 12 | (b(1) & 0x3F) << 6 | (b(2) & 0x3F), 3};
  return {(b(0) & 0x07) << 18 | (b(1) & 0x3F) << 12 | (b(2) & 0x3F) << 6 | (b(3) & 0x3F), 4};
}

// The last character before `end`; precondition: begin < end.
Utf8Char utf8_before(const char* begin, const char* end);

bool valid_utf8(std::string_view text);
size_t first_invalid_utf8(std::string_view text);             // byte offset; text.size() when all is valid
// Each maximal ill-formed part becomes U+FFFD (Unicode 3.9, as Python's errors="replace").
std::string replace_invalid_utf8(std::string_view text);

struct CodeRange {
  uint32_t first = 0, last = 0;
};

class UnicodeClasses {
 public:
  static constexpr uint32_t limit = 0x110000;
  // What the usual pre-tokenizers ask for. \p{L}, \p{N}, White_Space, CR or LF (also space).
  static constexpr uint8_t letter = 1, number = 2, space = 4, newline = 8;

  UnicodeClasses();  // reads ICU's tables: some milliseconds

  // ICU's UCharCategory of Unicode 16.0; unassigned (0) for anything later.
  uint8_t category(uint32_t code) const { return blocks_[static_cast<size_t>(index_[code >> 8]) << 8 | (code & 0xFF)]; }
  uint8_t kind(uint32_t code) const { return code < 0x100 ? low_kinds_[code] : kind_of_category_[category(code)]; }
  // By the text's first byte: kind of an ASCII character.
  uint8_t ascii_kind(unsigned char byte) const { return low_kinds_[byte]; }
  bool is_numeric(uint32_t code) const;    // Nd, Nl, No of Unicode 17 (the Digits step)
  bool is_word(uint32_t code) const;       // \w of UTS 18: Alphabetic, M, Nd, Pc, Join_Control
  // Sorted ranges of all code points with category in `mask` (bit i: category i), without surrogates. Cheap: patterns of hostile files ask often.
  std::vector<CodeRange> ranges(uint32_t mask) const;

 private:
  struct Run {
    uint32_t first, last;
    uint8_t category;
  };
  std::vector<uint8_t> blocks_;
  std::vector<Run> runs_;                  // neighbours of one category, in order
  std::array<uint16_t, limit / 256> index_{};
  std::array<uint8_t, 256> low_kinds_{};
  std::array<uint8_t, 32> kind_of_category_{};
};

std::vector<CodeRange> white_space();      // White_Space, sorted
std::vector<CodeRange> complement(const std::vector<CodeRange>& sorted);  // without surrogates

enum class NormalForm { nfc, nfd, nfkc, nfkd };

// Normal forms applied one after the other. Characters assigned after Unicode 9.0 are left alone and do not interact with others.
class TextNormalizer {
 public:
  explicit TextNormalizer(const std::vector<NormalForm>& forms);
  ~TextNormalizer();
  TextNormalizer(TextNormalizer&&) noexcept;
  TextNormalizer& operator=(TextNormalizer&&) noexcept;

  bool empty() const;
  // Valid UTF-8 in and out. Returns `text` itself when nothing changes, else a view of `buffer`.
  std::string_view apply(std::string_view text, std::string& buffer) const;

 private:
  struct Steps;
  std::unique_ptr<Steps> steps_;
};

}  // namespace octet::data
