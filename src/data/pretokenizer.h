// Cuts text into the words that BPE works on: the steps of `pre_tokenizer` in tokenizer.json, ByteLevel last.
//
// The patterns of GPT-2 (also ByteLevel's own), of Llama 3 (cl100k with up to three digits) and of Qwen 2 (one digit) are matched by hand-written
// scanners; any other by PCRE2 (data/pretokenizer_regex.h). Tests hold both against each other.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "data/pretokenizer_regex.h"
#include "data/tokenizer_json.h"
#include "data/unicode.h"

namespace octet::data {

inline constexpr std::string_view gpt2_pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view llama3_pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view qwen2_pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// End of the word that begins at `at` (at < end). Every character belongs to some word.
const char* next_word_gpt2(const UnicodeClasses& classes, const char* at, const char* end);
const char* next_word_cl100k(const UnicodeClasses& classes, int most_digits, const char* at, const char* end);

struct PreTokenizerScratch {
  SplitRegex::Scratch regex;
  std::vector<SplitPiece> cuts;
  std::vector<std::string_view> pieces, more;
  std::string prefixed;
};

class PreTokenizer {
 public:
  // `where`: the file, for errors (ExitCode::config).
  PreTokenizer(const TokenizerJson& json, std::shared_ptr<const UnicodeClasses> classes, const std::string& where);

  // Calls visit(word) for the words of valid UTF-8 in order; none is empty. A word may be a view of the scratch.
  template <class Visit>
  void each_word(std::string_view text, PreTokenizerScratch& scratch, Visit&& visit) const {
    const auto words = [&](std::string_view piece) {
      if (byte_level_.add_prefix_space && piece.front() != ' ') {
        scratch.prefixed.assign(1, ' ').append(piece);
        piece = scratch.prefixed;
      }
      if (!byte_level_.use_regex) return visit(piece);
      scan(Scanner::gpt2, piece, visit);
    };
    if (steps_.empty()) return words(text);
    if (const auto* scanner = std::get_if<Scanner>(&steps_[0]); scanner && steps_.size() == 1) return scan(*scanner, text, words);
    cut(text, scratch);
    for (std::string_view piece : scratch.pieces) words(piece);
  }

 private:
  enum class Scanner { gpt2, llama3, qwen2 };
  struct Regex {
    SplitRegex regex;
    SplitBehavior behavior;
    bool invert;
  };
  struct Literal {
    std::string text;
    SplitBehavior behavior;
    bool invert;
  };
  using Step = std::variant<Scanner, Regex, Literal, DigitsStep>;

  template <class Visit>
  void scan(Scanner scanner, std::string_view text, Visit&& visit) const {
    const char* const end = text.data() + text.size();
    for (const char* at = text.data(); at < end;) {
      const char* next = scanner == Scanner::gpt2 ? next_word_gpt2(*classes_, at, end) : next_word_cl100k(*classes_, scanner == Scanner::llama3 ? 3 : 1, at, end);
      visit(std::string_view(at, static_cast<size_t>(next - at)));
      at = next;
    }
  }
  void cut(std::string_view text, PreTokenizerScratch& scratch) const;
  void cut_digits(bool individual, std::string_view text, std::vector<SplitPiece>& cuts) const;

  std::vector<Step> steps_;
  ByteLevelStep byte_level_;
  std::shared_ptr<const UnicodeClasses> classes_;
};

}  // namespace octet::data
