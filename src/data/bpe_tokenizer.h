// Byte-level BPE of a tokenizer.json: text to ids, exactly as the `tokenizers` package's encode(text, add_special_tokens=False).
//
// Order of work: added tokens that are not `normalized` are cut out; the text between is normalized; the `normalized` added tokens are cut out;
// the rest is cut into words (data/pretokenizer.h) and each word merged (data/bpe_model.h). Special tokens that stand in the text become their ids.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "data/bpe_added_tokens.h"
#include "data/bpe_cache.h"
#include "data/bpe_model.h"
#include "data/pretokenizer.h"
#include "data/tokenizer_json.h"

namespace octet::data {

class BpeTokenizer {
 public:
  // One a thread: the cache of words, and buffers.
  struct Scratch {
    BpeCache cache;
    BpeScratch merging;
    PreTokenizerScratch words;
    std::string normalized;
    TokenBuffer ids;
  };

  // Throws Error(ExitCode::config); `where` names the file. Making the classes takes milliseconds; several tokenizers may share them.
  BpeTokenizer(const TokenizerJson& json, const std::string& where,
               std::shared_ptr<const UnicodeClasses> classes = std::make_shared<const UnicodeClasses>());

  // Appends to scratch.ids. Precondition: valid UTF-8, less than 2^31 bytes.
  void encode(std::string_view text, Scratch& scratch) const;
  // Bytes of a token (added tokens: their content); empty for an unused id.
  std::string_view bytes(int32_t id) const;
  std::optional<int32_t> added_id(std::string_view content) const;
  int64_t vocab_size() const { return vocab_size_; }

 private:
  void encode_piece(std::string_view text, Scratch& scratch) const;
  void encode_word(std::string_view word, Scratch& scratch) const;

  std::shared_ptr<const UnicodeClasses> classes_;
  TextNormalizer normalizer_;
  AddedTokenMatcher raw_, normalized_;
  PreTokenizer pre_tokenizer_;
  BpeModel model_;
  std::unordered_map<int32_t, std::string> added_;
  int64_t vocab_size_;
};

}  // namespace octet::data
