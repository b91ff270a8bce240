// The text of a piece that the reader cut: JSONL lines parsed, UTF-8 checked.
#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "data/build_reader.h"

namespace octet::data {

enum class InvalidUtf8 { refuse, replace, keep };   // keep: any bytes are text (byte tokenizer; JSONL is UTF-8 always)

// One a thread.
class DocumentParser {
 public:
  DocumentParser(std::string json_key, InvalidUtf8 invalid);
  ~DocumentParser();
  DocumentParser(DocumentParser&&) noexcept;

  // Valid until the next call. Throws Error(ExitCode::data): "file:line" for a line that is no JSON object with one string under the key,
  // file and byte for invalid UTF-8.
  std::string_view text(const TextChunk& chunk, const TextPiece& piece);

 private:
  std::string_view line_text(std::string_view line, const TextChunk& chunk, const TextPiece& piece);

  struct Json;
  std::unique_ptr<Json> json_;
  std::string key_, buffer_;
  InvalidUtf8 invalid_;
};

}  // namespace octet::data
