// The byte tokenizer: ids 0-255 are the bytes of the text, 256 ends a document (EOD).
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace octet::data {

struct ByteTokenizer {
  static constexpr std::string_view name = "byte";
  static constexpr int32_t eod = 256;
  static constexpr int64_t vocab_size = 257;

  // Replaces `tokens` by the ids of `text`; works on any piece of a text.
  static void encode(std::string_view text, std::vector<int32_t>& tokens) {
    tokens.resize(text.size());
    for (size_t i = 0; i < text.size(); ++i) tokens[i] = static_cast<unsigned char>(text[i]);
  }

  // EOD ids give nothing. Precondition: ids in [0, 256].
  static std::string decode(std::span<const int32_t> tokens) {
    std::string text;
    text.reserve(tokens.size());
    for (int32_t id : tokens) {
      if (id != eod) text.push_back(static_cast<char>(id));
    }
    return text;
  }
};

}  // namespace octet::data
