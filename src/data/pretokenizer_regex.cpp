#include "data/pretokenizer_regex.h"

#include <unicode/uchar.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "core/error.h"

namespace octet::data {
namespace {
constexpr size_t most_pattern_bytes = 8192;

struct CategoryName {
  std::string_view name;
  uint32_t mask;
};
constexpr CategoryName category_names[] = {
    {"L", U_GC_L_MASK}, {"Lu", U_GC_LU_MASK}, {"Ll", U_GC_LL_MASK}, {"Lt", U_GC_LT_MASK}, {"Lm", U_GC_LM_MASK}, {"Lo", U_GC_LO_MASK},
    {"M", U_GC_M_MASK}, {"Mn", U_GC_MN_MASK}, {"Me", U_GC_ME_MASK}, {"Mc", U_GC_MC_MASK}, {"N", U_GC_N_MASK}, {"Nd", U_GC_ND_MASK},
    {"Nl", U_GC_NL_MASK}, {"No", U_GC_NO_MASK}, {"Z", U_GC_Z_MASK}, {"Zs", U_GC_ZS_MASK}, {"Zl", U_GC_ZL_MASK}, {"Zp", U_GC_ZP_MASK},
    {"P", U_GC_P_MASK}, {"Pd", U_GC_PD_MASK}, {"Ps", U_GC_PS_MASK}, {"Pe", U_GC_PE_MASK}, {"Pc", U_GC_PC_MASK}, {"Po", U_GC_PO_MASK},
    {"Pi", U_GC_PI_MASK}, {"Pf", U_GC_PF_MASK}, {"S", U_GC_S_MASK}, {"Sm", U_GC_SM_MASK}, {"Sc", U_GC_SC_MASK}, {"Sk", U_GC_SK_MASK},
    {"So", U_GC_SO_MASK}};

class Translator {
 public:
  Translator(std::string_view pattern, const UnicodeClasses& classes, const std::string& where)
      : in_(pattern), classes_(classes), where_(where) {}

  std::string translate() {
    while (at_ < in_.size()) item();
    if (!groups_.empty()) fail("a group is not closed");
    return std::move(out_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ExitCode::config, fmt::format("{} at byte {} of the pattern", what, at_), where_,
                "the regular expressions that are read are described in docs/reference/tokenizers.md");
  }
  char next() const { return at_ < in_.size() ? in_[at_] : '\0'; }
  bool take(std::string_view word) {
    if (!in_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }
  bool caseless() const { return !groups_.empty() && groups_.back(); }

  void literal(uint32_t code) {
    if (!caseless()) {
      out_ += fmt::format("\\x{{{:x}}}", code);
      folding_.clear();
      return;
    }
    if (code >= 0x80) fail("in (?i:) only ASCII is supported: a character beyond it");
    // Oniguruma also matches one character for these pairs (the sharp s, the ligatures).
    folding_ += static_cast<char>(std::tolower(static_cast<int>(code)));
    for (const char* pair : {"ss", "ff", "fi", "fl", "st"}) {
      if (folding_.ends_with(pair)) fail(fmt::format("in (?i:) the letters '{}' in a row are not supported", pair));
    }
    out_ += fmt::format("\\x{{{:x}}}", code);
  }

  std::vector<CodeRange> property(bool negative) {
    if (!take("{")) fail("\\p without {");
    if (take("^")) negative = !negative;
    const size_t end = in_.find('}', at_);
    if (end == std::string_view::npos) fail("\\p without }");
    const std::string_view name = in_.substr(at_, end - at_);
    const auto found = std::find_if(std::begin(category_names), std::end(category_names), [&](const CategoryName& c) { return c.name == name; });
    if (found == std::end(category_names)) fail("this property is not supported (general categories are)");
    at_ = end + 1;
    const auto ranges = classes_.ranges(found->mask);
    return negative ? complement(ranges) : ranges;
  }

  // Behind a backslash that stands for a set of characters; false when it does not.
  bool set_escape(std::vector<CodeRange>& set) {
    switch (next()) {
      case 's': ++at_; set = white_space(); return true;
      case 'S': ++at_; set = complement(white_space()); return true;
      case 'd': ++at_; set = classes_.ranges(U_GC_ND_MASK); return true;
      case 'D': ++at_; set = complement(classes_.ranges(U_GC_ND_MASK)); return true;
      case 'p': ++at_; set = property(false); return true;
      case 'P': ++at_; set = property(true); return true;
      default: return false;
    }
  }
  uint32_t character_escape() {
    if (at_ >= in_.size()) fail("the pattern ends in a backslash");
    const char c = in_[at_];
    const auto byte = static_cast<unsigned char>(c);
    if (c == 'x' && at_ + 2 < in_.size() && std::isxdigit(static_cast<unsigned char>(in_[at_ + 1])) && std::isxdigit(static_cast<unsigned char>(in_[at_ + 2]))) {
      const auto code = static_cast<uint32_t>(std::stoul(std::string(in_.substr(at_ + 1, 2)), nullptr, 16));
      if (code >= 0x80) fail("\\xHH beyond 7F is a byte of UTF-8 to Oniguruma and not supported");
      at_ += 3;
      return code;
    }
    if (byte >= 0x80 || std::isalnum(byte)) {
      constexpr std::string_view names = "rntfv";
      constexpr std::array<uint32_t, 5> codes = {'\r', '\n', '\t', '\f', '\v'};
      const size_t i = names.find(c);
      if (i == std::string_view::npos) fail(fmt::format("the escape \\{} is not supported", byte < 0x80 ? std::string(1, c) : "?"));
      ++at_;
      return codes[i];
    }
    ++at_;
    return byte;
  }
  uint32_t character() {
    const Utf8Char c = utf8_at(in_.data() + at_);
    at_ += c.bytes;
    return c.code;
  }

  static std::string ranges_text(const std::vector<CodeRange>& set) {
    std::string text;
    for (const CodeRange& r : set) text += r.first == r.last ? fmt::format("\\x{{{:x}}}", r.first) : fmt::format("\\x{{{:x}}}-\\x{{{:x}}}", r.first, r.last);
    return text;
  }

  void bracket() {
    if (caseless()) fail("in (?i:) classes are not supported");
    const bool negative = take("^");
    std::vector<CodeRange> all;
    for (bool first = true; next() != ']' || first; first = false) {
      if (at_ >= in_.size()) fail("a class is not closed");
      if (next() == ']') fail("an empty class, or ] as its first character without a backslash");
      if (next() == '[') fail("a class in a class is not supported (write \\[ for the character)");
      if (in_.substr(at_).starts_with("&&")) fail("&& in a class is not supported");
      std::vector<CodeRange> set;
      const size_t before = at_;
      uint32_t low = 0;
      if (take("\\")) {
        if (set_escape(set)) {
          if (next() == '-' && at_ + 1 < in_.size() && in_[at_ + 1] != ']') fail("a range that begins with a set");
          all.insert(all.end(), set.begin(), set.end());
          continue;
        }
        low = character_escape();
      } else if (next() == '-' && !(first || (at_ + 1 < in_.size() && in_[at_ + 1] == ']'))) {
        fail("a - that is neither first nor last in its class and makes no range");
      } else {
        low = character();
      }
      uint32_t high = low;
      if (next() == '-' && at_ + 1 < in_.size() && in_[at_ + 1] != ']') {
        ++at_;
        if (take("\\")) {
          if (set_escape(set)) fail("a range that ends with a set");
          high = character_escape();
        } else {
          high = character();
        }
      }
      if (high < low) {
        at_ = before;
        fail("a range from high to low");
      }
      all.push_back({low, high});
    }
    ++at_;
    out_ += "[" + ranges_text(sorted(std::move(all), negative)) + "]";
  }
  std::vector<CodeRange> sorted(std::vector<CodeRange> all, bool negative) const {
    std::sort(all.begin(), all.end(), [](const CodeRange& a, const CodeRange& b) { return a.first < b.first; });
    std::vector<CodeRange> out;
    for (const CodeRange& r : all) {
      if (!out.empty() && r.first <= out.back().last + 1) out.back().last = std::max(out.back().last, r.last);
      else out.push_back(r);
    }
    if (negative) out = complement(out);
    if (out.empty()) fail("a class of no characters");
    return out;
  }

  void group() {
    static constexpr std::string_view plain[] = {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>"};
    folding_.clear();
    if (take("(?i:")) {
      out_ += "(?i:";
      groups_.push_back(true);
      return;
    }
    for (std::string_view opening : plain) {
      if (!take(opening)) continue;
      out_ += opening;
      groups_.push_back(caseless());
      return;
    }
    if (in_.substr(at_).starts_with("(?") || in_.substr(at_).starts_with("(*")) fail("this kind of group is not supported");
    ++at_;
    out_ += "(?:";  // nothing refers to captures
    groups_.push_back(caseless());
  }

  void quantifier() {
    folding_.clear();
    if (next() == '{') {
      const size_t end = in_.find('}', at_);
      const std::string_view inside = end == std::string_view::npos ? "" : in_.substr(at_ + 1, end - at_ - 1);
      if (inside.empty() || !std::isdigit(static_cast<unsigned char>(inside[0])) || inside.find_first_not_of("0123456789,") != std::string_view::npos ||
          std::count(inside.begin(), inside.end(), ',') > 1) {
        fail("a { that is no quantifier {m}, {m,} or {m,n} (write \\{ for the character)");
      }
      out_ += in_.substr(at_, end + 1 - at_);
      at_ = end + 1;
      if (next() == '?' || next() == '+') fail("{m,n} followed by ? or + is not supported");
    } else {
      out_ += in_[at_++];
      if (next() == '?' || next() == '+') out_ += in_[at_++];
    }
    if (next() == '*' || next() == '+' || next() == '?' || next() == '{') fail("a quantifier of a quantifier");
  }

  void item() {
    const char c = next();
    switch (c) {
      case '(': return group();
      case ')':
        if (groups_.empty()) fail("a ) without (");
        groups_.pop_back();
        folding_.clear();
        ++at_;
        out_ += ')';
        return;
      case '|':
        folding_.clear();
        ++at_;
        out_ += '|';
        return;
      case '[': ++at_; return bracket();
      case '*': case '+': case '?': case '{': return quantifier();
      case '^': case '$': fail(fmt::format("{} is not supported", c));
      case '.':
        ++at_;
        out_ += "[^\\n]";
        return;
      case '\\': {
        ++at_;
        std::vector<CodeRange> set;
        if (set_escape(set)) {
          if (caseless()) fail("in (?i:) sets of characters are not supported");
          out_ += "[" + ranges_text(set) + "]";
        } else {
          literal(character_escape());
        }
        return;
      }
      default: literal(character());
    }
  }

  std::string_view in_;
  const UnicodeClasses& classes_;
  const std::string& where_;
  size_t at_ = 0;
  std::string out_, folding_;        // folding_: literals in a row of a caseless group
  std::vector<bool> groups_;         // open groups: caseless?
};
}  // namespace

std::string translate_regex(std::string_view pattern, const UnicodeClasses& classes, const std::string& where) {
  if (pattern.size() > most_pattern_bytes) throw Error(ExitCode::config, "the pattern is too long", where, "split it into several Split steps");
  return Translator(pattern, classes, where).translate();
}

struct SplitRegex::Code {
  pcre2_code* code = nullptr;
  ~Code() { pcre2_code_free(code); }
};

struct SplitRegex::Scratch::Memory {
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(64 << 10, 64 << 20, nullptr);
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  Memory() {
    if (!context || !stack || !data) throw std::bad_alloc();
    pcre2_jit_stack_assign(context, nullptr, stack);
  }
  ~Memory() {
    pcre2_match_data_free(data);
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
  }
};

SplitRegex::Scratch::Scratch() = default;
SplitRegex::Scratch::~Scratch() = default;
SplitRegex::Scratch::Scratch(Scratch&&) noexcept = default;
SplitRegex::Scratch& SplitRegex::Scratch::operator=(Scratch&&) noexcept = default;

SplitRegex::SplitRegex(std::string_view pattern, const UnicodeClasses& classes, const std::string& where)
    : code_(std::make_unique<Code>()), where_(where) {
  const std::string translated = translate_regex(pattern, classes, where);
  int number = 0;
  PCRE2_SIZE at = 0;
  code_->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(), PCRE2_UTF | PCRE2_NEVER_BACKSLASH_C, &number, &at, nullptr);
  if (!code_->code) {
    std::array<PCRE2_UCHAR, 200> message{};
    pcre2_get_error_message(number, message.data(), message.size());
    throw Error(ExitCode::config, fmt::format("no regular expression: {}", reinterpret_cast<const char*>(message.data())), where, "correct the pattern");
  }
  uint32_t matches_nothing = 0;
  pcre2_pattern_info(code_->code, PCRE2_INFO_MATCHEMPTY, &matches_nothing);
  if (matches_nothing) throw Error(ExitCode::config, "the pattern can match nothing, which is not supported", where, "use + instead of *");
  pcre2_jit_compile(code_->code, PCRE2_JIT_COMPLETE);  // without it the interpreter matches: the same, slower
}

SplitRegex::~SplitRegex() = default;
SplitRegex::SplitRegex(SplitRegex&&) noexcept = default;
SplitRegex& SplitRegex::operator=(SplitRegex&&) noexcept = default;

void SplitRegex::split(std::string_view text, Scratch& scratch, std::vector<SplitPiece>& pieces) const {
  if (!scratch.memory_) scratch.memory_ = std::make_unique<Scratch::Memory>();
  pieces.clear();
  size_t done = 0;
  while (done < text.size()) {
    const int rc = pcre2_match(code_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), done, PCRE2_NO_UTF_CHECK,
                               scratch.memory_->data, scratch.memory_->context);
    if (rc == PCRE2_ERROR_NOMATCH) break;
    if (rc < 0) {
      std::array<PCRE2_UCHAR, 200> message{};
      pcre2_get_error_message(rc, message.data(), message.size());
      throw Error(ExitCode::data, fmt::format("the pattern does not get through a piece of {} bytes: {}", text.size(),
                                              reinterpret_cast<const char*>(message.data())), where_, "use a pattern that backtracks less");
    }
    const PCRE2_SIZE* found = pcre2_get_ovector_pointer(scratch.memory_->data);
    if (found[0] > done) pieces.push_back({done, found[0], false});
    pieces.push_back({found[0], found[1], true});
    done = found[1];
  }
  if (done < text.size()) pieces.push_back({done, text.size(), false});
}

}  // namespace octet::data
