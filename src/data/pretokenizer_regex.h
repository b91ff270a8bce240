// Split patterns of tokenizer.json by PCRE2, with the meaning they have in the `tokenizers` package (Oniguruma, Ruby syntax).
//
// The two engines differ in Unicode version, in \s (PCRE2 has U+180E) and in corners of the syntax. So a pattern is translated: \s \d \w \p{..}
// and their complements become explicit ranges of our own tables (data/unicode.h), and syntax whose meaning differs or is unclear is refused.
// Taken: literals, . | () (?:) (?i:) (?=) (?!) (?<=) (?<!) (?>), classes, * + ? {m,n} with lazy ? (and possessive + except after {}), escapes of
// punctuation, \r \n \t \f \v \xHH, \s \S \d \D \p{X} \P{X} with a general category (L, Lu, ...). In (?i:) only ASCII literals, because case
// folding beyond it differs. Patterns that can match nothing are refused.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/unicode.h"

namespace octet::data {

struct SplitPiece {
  size_t begin = 0, end = 0;
  bool match = false;
};

// The translated pattern. Throws Error(ExitCode::config) with `where` (file and JSON path).
std::string translate_regex(std::string_view pattern, const UnicodeClasses& classes, const std::string& where);

class SplitRegex {
 public:
  // Working memory of matching; one a thread.
  class Scratch {
   public:
    Scratch();
    ~Scratch();
    Scratch(Scratch&&) noexcept;
    Scratch& operator=(Scratch&&) noexcept;

   private:
    friend class SplitRegex;
    struct Memory;
    std::unique_ptr<Memory> memory_;
  };

  // Throws Error(ExitCode::config).
  SplitRegex(std::string_view pattern, const UnicodeClasses& classes, const std::string& where);
  ~SplitRegex();
  SplitRegex(SplitRegex&&) noexcept;
  SplitRegex& operator=(SplitRegex&&) noexcept;

  // Cuts valid UTF-8 into matches and what lies between; the pieces cover it. Throws Error(ExitCode::data) when the pattern
  // needs more steps or memory than a sane one does.
  void split(std::string_view text, Scratch& scratch, std::vector<SplitPiece>& pieces) const;

 private:
  struct Code;
  std::unique_ptr<Code> code_;
  std::string where_;
};

}  // namespace octet::data
