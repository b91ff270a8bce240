// A tokenizer.json and, behind a NUL byte, a text to encode. The alphabet that every vocabulary must have (ids 0-242, 4 KB of JSON) is put in behind
// the first "vocab":{ of the input. With a slash in front the input is a pattern of the regular expressions of Split instead.
#include "data/bpe_tokenizer.h"
#include "fuzz.h"

using namespace octet;
using namespace octet::data;

namespace {

std::string with_alphabet(std::string_view json) {
  static const std::string alphabet = [] {
    std::string out;
    for (int byte = 0, id = 0; byte < 0xF5; ++byte) {
      if (byte == 0xC0 || byte == 0xC1) continue;
      const std::string c = byte_level_char(static_cast<unsigned char>(byte));
      out += '"' + (c == "\"" || c == "\\" ? "\\" + c : c) + "\":" + std::to_string(id++) + ',';
    }
    out.pop_back();
    return out;
  }();
  constexpr std::string_view vocab = "\"vocab\":{";
  const size_t at = json.find(vocab);
  if (at == std::string_view::npos) return std::string(json);
  const std::string_view rest = json.substr(at + vocab.size());
  return std::string(json.substr(0, at + vocab.size())) + alphabet + (rest.starts_with('}') ? "" : ",") + std::string(rest);
}

std::shared_ptr<const UnicodeClasses> classes() {
  static const auto made = std::make_shared<const UnicodeClasses>();   // once: 30 ms with the sanitizers
  return made;
}

void split_by(const std::string& pattern, const std::string& text) {
  fuzz::accepts({ExitCode::config, ExitCode::data}, [&] {
    SplitRegex::Scratch scratch;
    std::vector<SplitPiece> pieces;
    SplitRegex(pattern, *classes(), "pattern").split(text, scratch, pieces);
    size_t at = 0;
    for (const SplitPiece& p : pieces) {
      fuzz::require(p.begin == at && p.end > p.begin, "pieces follow one another and none is empty");
      at = p.end;
    }
    fuzz::require(at == text.size(), "pieces cover the text");
  });
}

bool keeps_text(const TokenizerJson& json) {
  bool keeps = json.added_tokens.empty() && json.normalizer.empty() && !json.byte_level.add_prefix_space;
  for (const PreTokenizerStep& step : json.splits) {
    const auto* split = std::get_if<SplitStep>(&step);
    keeps = keeps && (!split || split->behavior != SplitBehavior::removed);
  }
  return keeps;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input = fuzz::text_of(data, size);
  const size_t nul = std::min(input.find('\0'), input.size());
  const std::string text = replace_invalid_utf8(input.substr(std::min(nul + 1, input.size())));
  if (input.starts_with('/')) {
    split_by(replace_invalid_utf8(input.substr(1, nul - 1)), text);
    return 0;
  }
  TokenizerJson json;
  if (!fuzz::accepts({ExitCode::config}, [&] { json = parse_tokenizer_json(with_alphabet(input.substr(0, nul)), "tokenizer.json"); })) return 0;
  fuzz::accepts({ExitCode::config, ExitCode::data}, [&] {
    const BpeTokenizer tokenizer(json, "tokenizer.json", classes());
    BpeTokenizer::Scratch scratch;
    tokenizer.encode(text, scratch);
    std::string back;
    for (size_t i = 0; i < scratch.ids.size(); ++i) {
      const int32_t id = scratch.ids.data()[i];
      fuzz::require(id >= 0 && id < tokenizer.vocab_size(), "ids are the tokenizer's");
      back += tokenizer.bytes(id);
    }
    fuzz::require(!keeps_text(json) || back == text, "nothing of the text is lost");
  });
  return 0;
}
