// Tokens that are cut out of the text before anything else (special tokens and others): leftmost, of those the longest, never
// overlapping. A token may ask to stand alone as a word (single_word) or to take the white space around it (lstrip, rstrip).
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer_json.h"

namespace octet::data {

class AddedTokenMatcher {
 public:
  // `normalizer` is applied to the tokens' contents (not for those matched in the text as it is: give nullptr).
  AddedTokenMatcher(std::vector<AddedToken> tokens, const TextNormalizer* normalizer, std::shared_ptr<const UnicodeClasses> classes,
                    const std::string& where);

  AddedTokenMatcher(AddedTokenMatcher&&) noexcept = default;  // patterns point into tokens_, whose memory moves along
  AddedTokenMatcher& operator=(AddedTokenMatcher&&) noexcept = default;

  // Calls piece(text, id) from left to right: id < 0 for text between tokens (never empty), else the token's id.
  template <class Visit>
  void split(std::string_view text, Visit&& visit) const {
    size_t done = 0;
    Match match;
    for (size_t from = 0; find(text, from, match); from = match.end) {
      const AddedToken& token = *match.token;
      if (token.single_word && !stands_alone(text, match)) continue;
      size_t begin = match.begin, end = match.end;
      if (token.lstrip) begin = std::max(space_before(text, begin), done);
      if (token.rstrip) end = space_behind(text, end);
      // An earlier token's rstrip has taken it whole: the package drops the empty span (where it is less than empty, the package fails).
      if (end <= done && done > match.begin) continue;
      if (done < begin) visit(text.substr(done, begin - done), int32_t{-1});
      visit(std::string_view(), token.id);
      done = end;
    }
    if (done < text.size()) visit(text.substr(done), int32_t{-1});
  }

 private:
  struct Pattern {
    std::string text;
    const AddedToken* token;
  };
  struct Match {
    size_t begin = 0, end = 0;
    const AddedToken* token = nullptr;
  };
  bool find(std::string_view text, size_t from, Match& match) const;
  const Pattern* longest_at(std::string_view text) const;
  bool stands_alone(std::string_view text, const Match& match) const;
  size_t space_before(std::string_view text, size_t at) const;
  size_t space_behind(std::string_view text, size_t at) const;

  std::vector<AddedToken> tokens_;
  std::vector<Pattern> patterns_;            // sorted by bytes
  std::array<bool, 256> starts_{};           // first bytes of patterns
  int only_start_ = -1;                      // the first byte when all patterns share it
  std::shared_ptr<const UnicodeClasses> classes_;
};

}  // namespace octet::data
