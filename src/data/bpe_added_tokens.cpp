#include "data/bpe_added_tokens.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "core/error.h"

namespace octet::data {

AddedTokenMatcher::AddedTokenMatcher(std::vector<AddedToken> tokens, const TextNormalizer* normalizer,
                                     std::shared_ptr<const UnicodeClasses> classes, const std::string& where)
    : tokens_(std::move(tokens)), classes_(std::move(classes)) {
  std::string buffer;
  for (const AddedToken& token : tokens_) {
    patterns_.push_back({std::string(normalizer ? normalizer->apply(token.content, buffer) : token.content), &token});
  }
  std::sort(patterns_.begin(), patterns_.end(), [](const Pattern& a, const Pattern& b) { return a.text < b.text; });
  for (size_t i = 1; i < patterns_.size(); ++i) {
    if (patterns_[i - 1].text != patterns_[i].text) continue;
    throw Error(ExitCode::config, fmt::format("added_tokens: the tokens with the ids {} and {} are the same text once normalized",
                                              patterns_[i - 1].token->id, patterns_[i].token->id), where, "remove one of them");
  }
  for (const Pattern& p : patterns_) starts_[static_cast<unsigned char>(p.text[0])] = true;
  if (std::count(starts_.begin(), starts_.end(), true) == 1) only_start_ = static_cast<unsigned char>(patterns_[0].text[0]);
}

// Narrows the sorted patterns byte by byte; the last one that ended on the way is the longest.
const AddedTokenMatcher::Pattern* AddedTokenMatcher::longest_at(std::string_view text) const {
  auto first = patterns_.begin(), last = patterns_.end();
  const Pattern* longest = nullptr;
  for (size_t depth = 0; first != last; ++depth) {
    if (first->text.size() == depth) {
      longest = &*first;
      ++first;
    }
    if (depth == text.size()) break;
    const auto byte = static_cast<unsigned char>(text[depth]);
    const auto at = [&](const Pattern& p) { return static_cast<unsigned char>(p.text[depth]); };
    first = std::partition_point(first, last, [&](const Pattern& p) { return at(p) < byte; });
    last = std::partition_point(first, last, [&](const Pattern& p) { return at(p) == byte; });
  }
  return longest;
}

bool AddedTokenMatcher::find(std::string_view text, size_t from, Match& match) const {
  if (patterns_.empty()) return false;
  for (size_t at = from; at < text.size(); ++at) {
    if (only_start_ >= 0) {
      const void* found = std::memchr(text.data() + at, only_start_, text.size() - at);
      if (!found) return false;
      at = static_cast<size_t>(static_cast<const char*>(found) - text.data());
    } else if (!starts_[static_cast<unsigned char>(text[at])]) {
      continue;
    }
    if (const Pattern* pattern = longest_at(text.substr(at))) {
      match = {at, at + pattern->text.size(), pattern->token};
      return true;
    }
  }
  return false;
}

bool AddedTokenMatcher::stands_alone(std::string_view text, const Match& match) const {
  const char* const begin = text.data();
  if (match.begin > 0 && classes_->is_word(utf8_before(begin, begin + match.begin).code)) return false;
  return match.end == text.size() || !classes_->is_word(utf8_at(begin + match.end).code);
}

size_t AddedTokenMatcher::space_before(std::string_view text, size_t at) const {
  while (at > 0) {
    const Utf8Char c = utf8_before(text.data(), text.data() + at);
    if (!(classes_->kind(c.code) & UnicodeClasses::space)) break;
    at -= c.bytes;
  }
  return at;
}

size_t AddedTokenMatcher::space_behind(std::string_view text, size_t at) const {
  while (at < text.size()) {
    const Utf8Char c = utf8_at(text.data() + at);
    if (!(classes_->kind(c.code) & UnicodeClasses::space)) break;
    at += c.bytes;
  }
  return at;
}

}  // namespace octet::data
