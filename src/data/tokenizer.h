// Tokenizers: bytes, SentencePiece, and byte-level BPE of a Hugging Face tokenizer.json, behind one class.
//
//   byte                  ids 0-255 are the bytes of the text, 256 ends a document (EOD)
//   sentencepiece:MODEL   a SentencePiece .model file; EOD is its </s>
//   hf:tokenizer.json     EOD is the token named by the user, or the first there is of <|endoftext|>, <|end_of_text|>, </s>, <eos>
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "data/bpe_tokenizer.h"
#include "data/sentencepiece.h"

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

class Tokenizer {
 public:
  // Working memory of encode; one a thread.
  struct Scratch {
    std::variant<std::monostate, BpeTokenizer::Scratch> bpe;
    std::vector<int32_t> ids;
  };

  // `name` as above. eod_token: the EOD token's text (not for byte). Throws Error(ExitCode::config): an unknown name, a missing, hostile or
  // unsupported file, an EOD token that the tokenizer does not have.
  static Tokenizer open(const std::string& name, const std::optional<std::string>& eod_token = std::nullopt);

  // Ids of a text, valid until the next call with this scratch. No BOS, no EOD. Precondition: valid UTF-8 (byte tokenizer: anything), at most
  // DocumentReader::most_document_bytes. May be called from several threads with one scratch each.
  std::span<const int32_t> encode(std::string_view text, Scratch& scratch) const;
  // Bytes of the ids, EOD left out. Throws Error(ExitCode::data) for an id the tokenizer does not have.
  std::string decode(std::span<const int32_t> ids) const;

  std::string_view kind() const;                          // byte, sentencepiece, hf-bpe: as in PREFIX.meta.json
  const std::string& file_name() const { return file_name_; }  // without folders; empty for byte
  const std::string& file_xxh64() const { return file_xxh64_; }
  int64_t vocab_size() const { return vocab_size_; }      // ids in use, with EOD
  std::optional<int32_t> eod() const { return eod_; }
  const std::string& eod_text() const { return eod_text_; }
  bool takes_any_bytes() const { return std::holds_alternative<ByteTokenizer>(of_); }

 private:
  using Kind = std::variant<ByteTokenizer, SentencePieceModel, BpeTokenizer>;
  explicit Tokenizer(Kind of) : of_(std::move(of)) {}
  void choose_eod(const std::optional<std::string>& token, const std::string& where);

  Kind of_;
  std::string file_name_, file_xxh64_, eod_text_;
  int64_t vocab_size_ = 0;
  std::optional<int32_t> eod_;
};

}  // namespace octet::data
