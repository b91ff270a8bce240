#include "data/unicode.h"

#include <simdjson.h>
#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/uniset.h>
#include <unicode/utf8.h>

#include <algorithm>
#include <iterator>
#include <list>
#include <map>

#include "core/error.h"
#include "data/unicode_additions.h"

namespace octet::data {
namespace {
constexpr uint8_t pinned_major = 16;

void check(UErrorCode status, const char* what) {
  if (U_FAILURE(status)) throw Error(ExitCode::internal, std::string(what) + ": " + u_errorName(status), "ICU", "install the data files of ICU");
}

std::vector<uint8_t> categories() {
  std::vector<uint8_t> all(UnicodeClasses::limit, U_UNASSIGNED);
  u_enumCharTypes(
      [](const void* context, UChar32 start, UChar32 end, UCharCategory type) -> UBool {
        auto* out = static_cast<uint8_t*>(const_cast<void*>(context));
        std::fill(out + start, out + end, static_cast<uint8_t>(type));
        return true;
      },
      all.data());
  UVersionInfo version;
  u_getUnicodeVersion(version);
  if (version[0] > pinned_major) {
    for (uint32_t c = 0; c < UnicodeClasses::limit; ++c) {
      UVersionInfo age;
      u_charAge(static_cast<UChar32>(c), age);
      if (age[0] > pinned_major) all[c] = U_UNASSIGNED;
    }
  }
  for (const CategoryRange& r : unicode_16_additions) {
    for (uint32_t c = r.first; c <= r.last; ++c) all[c] = r.category;
  }
  for (const CategoryRange& r : unicode_16_corrections) {
    for (uint32_t c = r.first; c <= r.last; ++c) all[c] = r.category;
  }
  return all;
}
}  // namespace

Utf8Char utf8_before(const char* begin, const char* end) {
  const char* at = end - 1;
  while (at > begin && (static_cast<unsigned char>(*at) & 0xC0) == 0x80) --at;
  return utf8_at(at);
}

bool valid_utf8(std::string_view text) { return simdjson::validate_utf8(text.data(), text.size()); }

size_t first_invalid_utf8(std::string_view text) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(text.data());
  const auto size = static_cast<int64_t>(text.size());
  int64_t at = 0;
  while (at < size) {
    const int64_t begin = at;
    UChar32 c = 0;
    U8_NEXT(bytes, at, size, c);
    if (c < 0) return static_cast<size_t>(begin);
  }
  return text.size();
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size() + 16);
  const auto* bytes = reinterpret_cast<const uint8_t*>(text.data());
  const auto size = static_cast<int64_t>(text.size());
  int64_t at = 0;
  while (at < size) {
    const int64_t begin = at;
    UChar32 c = 0;
    U8_NEXT(bytes, at, size, c);
    if (c < 0) out += "\xEF\xBF\xBD";
    else out.append(text.substr(static_cast<size_t>(begin), static_cast<size_t>(at - begin)));
  }
  return out;
}

UnicodeClasses::UnicodeClasses() {
  const std::vector<uint8_t> all = categories();
  for (uint32_t c = 0; c < limit; ++c) {
    if (!runs_.empty() && runs_.back().category == all[c]) runs_.back().last = c;
    else runs_.push_back({c, c, all[c]});
  }
  std::map<std::string_view, uint16_t> known;
  for (size_t block = 0; block < index_.size(); ++block) {
    const std::string_view content(reinterpret_cast<const char*>(all.data()) + block * 256, 256);
    const auto [found, fresh] = known.try_emplace(content, static_cast<uint16_t>(known.size()));
    if (fresh) blocks_.insert(blocks_.end(), content.begin(), content.end());
    index_[block] = found->second;
  }
  for (uint8_t c : {U_UPPERCASE_LETTER, U_LOWERCASE_LETTER, U_TITLECASE_LETTER, U_MODIFIER_LETTER, U_OTHER_LETTER}) kind_of_category_[c] = letter;
  for (uint8_t c : {U_DECIMAL_DIGIT_NUMBER, U_LETTER_NUMBER, U_OTHER_NUMBER}) kind_of_category_[c] = number;
  for (uint8_t c : {U_SPACE_SEPARATOR, U_LINE_SEPARATOR, U_PARAGRAPH_SEPARATOR}) kind_of_category_[c] = space;
  for (uint32_t c = 0; c < 256; ++c) low_kinds_[c] = kind_of_category_[all[c]];
  for (uint32_t c : {0x09, 0x0B, 0x0C, 0x85}) low_kinds_[c] = space;  // White_Space among the control characters
  for (uint32_t c : {0x0A, 0x0D}) low_kinds_[c] = space | newline;
}

bool UnicodeClasses::is_numeric(uint32_t code) const {
  if (kind(code) & number) return true;
  return std::any_of(std::begin(unicode_17_numbers), std::end(unicode_17_numbers),
                     [&](const CategoryRange& r) { return code >= r.first && code <= r.last; });
}

bool UnicodeClasses::is_word(uint32_t code) const {
  if (code == 0x200C || code == 0x200D) return true;
  switch (category(code)) {
    case U_UNASSIGNED: return false;
    case U_UPPERCASE_LETTER: case U_LOWERCASE_LETTER: case U_TITLECASE_LETTER: case U_MODIFIER_LETTER: case U_OTHER_LETTER:
    case U_NON_SPACING_MARK: case U_ENCLOSING_MARK: case U_COMBINING_SPACING_MARK:
    case U_DECIMAL_DIGIT_NUMBER: case U_LETTER_NUMBER: case U_CONNECTOR_PUNCTUATION: return true;
    default: return u_hasBinaryProperty(static_cast<UChar32>(code), UCHAR_ALPHABETIC);  // circled and squared letters
  }
}

std::vector<CodeRange> UnicodeClasses::ranges(uint32_t mask) const {
  std::vector<CodeRange> out;
  for (const Run& run : runs_) {
    if (!(mask >> run.category & 1) || run.category == U_SURROGATE) continue;
    if (!out.empty() && out.back().last + 1 == run.first) out.back().last = run.last;
    else out.push_back({run.first, run.last});
  }
  return out;
}

std::vector<CodeRange> white_space() {
  return {{0x09, 0x0D}, {0x20, 0x20}, {0x85, 0x85}, {0xA0, 0xA0}, {0x1680, 0x1680}, {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F},
          {0x205F, 0x205F}, {0x3000, 0x3000}};
}

std::vector<CodeRange> complement(const std::vector<CodeRange>& sorted) {
  std::vector<CodeRange> out;
  const auto add = [&](uint32_t first, uint32_t end) {
    if (first < end) out.push_back({first, end - 1});
  };
  uint32_t from = 0;
  const auto add_gap = [&](uint32_t end) {
    add(from, std::min(end, 0xD800u));
    add(std::max(from, 0xE000u), end);
  };
  for (const CodeRange& r : sorted) {
    add_gap(r.first);
    from = r.last + 1;
  }
  add_gap(UnicodeClasses::limit);
  return out;
}

struct TextNormalizer::Steps {
  icu::UnicodeSet known;  // the filters refer to it
  std::list<icu::FilteredNormalizer2> forms;
};

TextNormalizer::TextNormalizer(const std::vector<NormalForm>& forms) : steps_(std::make_unique<Steps>()) {
  if (forms.empty()) return;
  UErrorCode status = U_ZERO_ERROR;
  steps_->known.applyPattern(UNICODE_STRING_SIMPLE("[:age=9.0:]"), status);
  check(status, "the set of Unicode 9.0");
  steps_->known.freeze();
  for (NormalForm form : forms) {
    const icu::Normalizer2* base = nullptr;
    switch (form) {
      case NormalForm::nfc: base = icu::Normalizer2::getNFCInstance(status); break;
      case NormalForm::nfd: base = icu::Normalizer2::getNFDInstance(status); break;
      case NormalForm::nfkc: base = icu::Normalizer2::getNFKCInstance(status); break;
      case NormalForm::nfkd: base = icu::Normalizer2::getNFKDInstance(status); break;
    }
    check(status, "a normalizer");
    steps_->forms.emplace_back(*base, steps_->known);
  }
}

TextNormalizer::~TextNormalizer() = default;
TextNormalizer::TextNormalizer(TextNormalizer&&) noexcept = default;
TextNormalizer& TextNormalizer::operator=(TextNormalizer&&) noexcept = default;

bool TextNormalizer::empty() const { return steps_->forms.empty(); }

std::string_view TextNormalizer::apply(std::string_view text, std::string& buffer) const {
  // ASCII is in every normal form.
  if (empty() || std::none_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) >= 0x80; })) return text;
  for (const icu::FilteredNormalizer2& form : steps_->forms) {
    UErrorCode status = U_ZERO_ERROR;
    const icu::StringPiece piece(text.data(), static_cast<int32_t>(text.size()));
    const bool same = form.isNormalizedUTF8(piece, status);
    check(status, "isNormalizedUTF8");
    if (same) continue;
    std::string out;
    icu::StringByteSink<std::string> sink(&out, static_cast<int32_t>(text.size()));
    form.normalizeUTF8(0, piece, sink, nullptr, status);
    check(status, "normalizeUTF8");
    buffer = std::move(out);
    text = buffer;
  }
  return text;
}

}  // namespace octet::data
