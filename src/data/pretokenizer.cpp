#include "data/pretokenizer.h"

#include <algorithm>

namespace octet::data {
namespace {
constexpr uint8_t L = UnicodeClasses::letter, N = UnicodeClasses::number, S = UnicodeClasses::space, R = UnicodeClasses::newline;

struct Kind {
  uint8_t kind;
  uint32_t bytes;
};

inline Kind kind_at(const UnicodeClasses& classes, const char* at) {
  const auto byte = static_cast<unsigned char>(*at);
  if (byte < 0x80) return {classes.ascii_kind(byte), 1};
  const Utf8Char c = utf8_at(at);
  return {classes.kind(c.code), c.bytes};
}

// Behind the run of characters whose kind is in `mask`, or with mask 0 of those that are neither letter, number nor space.
template <uint8_t mask>
const char* run(const UnicodeClasses& classes, const char* at, const char* end) {
  while (at < end) {
    const Kind k = kind_at(classes, at);
    if (mask ? !(k.kind & mask) : k.kind != 0) break;
    at += k.bytes;
  }
  return at;
}

// Behind 's 't 're 've 'm 'll 'd at an apostrophe, else `at`. Without regard to case U+017F is an s.
const char* contraction(bool caseless, const char* at, const char* end) {
  const auto left = static_cast<size_t>(end - at);
  if (left < 2) return at;
  const auto lower = [&](size_t i) { return caseless && at[i] >= 'A' && at[i] <= 'Z' ? static_cast<char>(at[i] + 32) : at[i]; };
  switch (lower(1)) {
    case 's': case 't': case 'm': case 'd': return at + 2;
    case 'r': case 'v': return left > 2 && lower(2) == 'e' ? at + 3 : at;
    case 'l': return left > 2 && lower(2) == 'l' ? at + 3 : at;
    case '\xC5': return caseless && left > 2 && at[2] == '\xBF' ? at + 3 : at;
    default: return at;
  }
}

// \s+(?!\S)|\s+ for the run of space [at, stop): all of it at the end of the text, else all but its last character, if it has two.
const char* space_word(const char* at, const char* stop, const char* end) {
  if (stop == end) return stop;
  const char* last = stop - utf8_before(at, stop).bytes;
  return last > at ? last : stop;
}
}  // namespace

const char* next_word_gpt2(const UnicodeClasses& classes, const char* at, const char* end) {
  if (*at == '\'') {
    const char* behind = contraction(false, at, end);
    if (behind != at) return behind;
  }
  const char* from = at;
  Kind k = kind_at(classes, from);
  if (*at == ' ' && at + 1 < end) {
    const Kind behind = kind_at(classes, at + 1);
    if (!(behind.kind & S)) {
      from = at + 1;
      k = behind;
    }
  }
  if (k.kind & L) return run<L>(classes, from + k.bytes, end);
  if (k.kind & N) return run<N>(classes, from + k.bytes, end);
  if (!(k.kind & S)) return run<0>(classes, from + k.bytes, end);
  return space_word(at, run<S>(classes, at, end), end);
}

const char* next_word_cl100k(const UnicodeClasses& classes, int most_digits, const char* at, const char* end) {
  if (*at == '\'') {
    const char* behind = contraction(true, at, end);
    if (behind != at) return behind;
  }
  const Kind k = kind_at(classes, at);
  const char* const second = at + k.bytes;
  if (k.kind & L) return run<L>(classes, second, end);
  if (k.kind & N) {
    const char* to = second;
    for (int digits = 1; digits < most_digits && to < end; ++digits) {
      const Kind next = kind_at(classes, to);
      if (!(next.kind & N)) break;
      to += next.bytes;
    }
    return to;
  }
  const Kind next = second < end ? kind_at(classes, second) : Kind{S, 0};
  if (!(k.kind & R) && (next.kind & L)) return run<L>(classes, second + next.bytes, end);  // [^\r\n\p{L}\p{N}]?\p{L}+
  const char* others = k.kind == 0 ? second : *at == ' ' && next.kind == 0 ? second + next.bytes : nullptr;
  if (others) return run<R>(classes, run<0>(classes, others, end), end);                   //  ?[^\s\p{L}\p{N}]+[\r\n]*
  const char* const stop = run<S>(classes, at, end);
  for (const char* newline = stop; newline > at; --newline) {                              // \s*[\r\n]+
    if (newline[-1] == '\n' || newline[-1] == '\r') return newline;
  }
  return space_word(at, stop, end);
}

PreTokenizer::PreTokenizer(const TokenizerJson& json, std::shared_ptr<const UnicodeClasses> classes, const std::string& where)
    : byte_level_(json.byte_level), classes_(std::move(classes)) {
  for (const PreTokenizerStep& step : json.splits) {
    if (const auto* digits = std::get_if<DigitsStep>(&step)) {
      steps_.emplace_back(*digits);
      continue;
    }
    const auto& split = std::get<SplitStep>(step);
    // The known patterns match every character, so that Isolated gives their matches whatever `invert` says.
    const bool matches_only = split.behavior == SplitBehavior::isolated || (split.behavior == SplitBehavior::removed && split.invert);
    if (split.is_regex && matches_only && split.pattern == gpt2_pattern) steps_.emplace_back(Scanner::gpt2);
    else if (split.is_regex && matches_only && split.pattern == llama3_pattern) steps_.emplace_back(Scanner::llama3);
    else if (split.is_regex && matches_only && split.pattern == qwen2_pattern) steps_.emplace_back(Scanner::qwen2);
    else if (split.is_regex) steps_.emplace_back(Regex{SplitRegex(split.pattern, *classes_, where + ": " + split.where), split.behavior, split.invert});
    else steps_.emplace_back(Literal{split.pattern, split.behavior, split.invert});
  }
}

namespace {
void cut_literal(std::string_view literal, std::string_view text, std::vector<SplitPiece>& cuts) {
  cuts.clear();
  size_t done = 0;
  for (size_t at; (at = text.find(literal, done)) != std::string_view::npos; done = at + literal.size()) {
    if (at > done) cuts.push_back({done, at, false});
    cuts.push_back({at, at + literal.size(), true});
  }
  if (done < text.size()) cuts.push_back({done, text.size(), false});
}

// What the package does with matches, in its words: a piece that joins its neighbour must be a match behind (before) a non-match.
void apply_behavior(SplitBehavior behavior, bool invert, std::vector<SplitPiece>& cuts) {
  if (invert) {
    for (SplitPiece& c : cuts) c.match = !c.match;
  }
  if (behavior == SplitBehavior::isolated) return;
  if (behavior == SplitBehavior::removed) {
    std::erase_if(cuts, [](const SplitPiece& c) { return c.match; });
    return;
  }
  const bool backwards = behavior == SplitBehavior::merged_with_next;
  if (backwards) std::reverse(cuts.begin(), cuts.end());
  std::vector<SplitPiece> out;
  bool previous = false;
  for (const SplitPiece& c : cuts) {
    const bool joins = behavior == SplitBehavior::contiguous ? c.match == previous : c.match && !previous;
    if (joins && !out.empty()) {
      out.back().begin = std::min(out.back().begin, c.begin);
      out.back().end = std::max(out.back().end, c.end);
    } else {
      out.push_back(c);
    }
    previous = c.match;
  }
  if (backwards) std::reverse(out.begin(), out.end());
  cuts = std::move(out);
}
}  // namespace

void PreTokenizer::cut_digits(bool individual, std::string_view text, std::vector<SplitPiece>& cuts) const {
  cuts.clear();
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = utf8_at(text.data() + at);
    const bool digit = classes_->is_numeric(c.code);
    if (!cuts.empty() && cuts.back().match == digit && !(digit && individual)) cuts.back().end += c.bytes;
    else cuts.push_back({at, at + c.bytes, digit});
    at += c.bytes;
  }
}

void PreTokenizer::cut(std::string_view text, PreTokenizerScratch& scratch) const {
  scratch.pieces.assign(1, text);
  for (const Step& step : steps_) {
    scratch.more.clear();
    for (std::string_view piece : scratch.pieces) {
      if (const auto* scanner = std::get_if<Scanner>(&step)) {
        scan(*scanner, piece, [&](std::string_view word) { scratch.more.push_back(word); });
        continue;
      }
      if (const auto* regex = std::get_if<Regex>(&step)) {
        regex->regex.split(piece, scratch.regex, scratch.cuts);
        apply_behavior(regex->behavior, regex->invert, scratch.cuts);
      } else if (const auto* literal = std::get_if<Literal>(&step)) {
        cut_literal(literal->text, piece, scratch.cuts);
        apply_behavior(literal->behavior, literal->invert, scratch.cuts);
      } else {
        cut_digits(std::get<DigitsStep>(step).individual, piece, scratch.cuts);
      }
      for (const SplitPiece& c : scratch.cuts) scratch.more.push_back(piece.substr(c.begin, c.end - c.begin));
    }
    std::swap(scratch.pieces, scratch.more);
  }
}

}  // namespace octet::data
