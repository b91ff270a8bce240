// The reading side of `octet data build`: input files cut into chunks of whole lines or documents, with the place to go on from.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/text_input.h"

namespace octet::data {

enum class DocumentSplit { none, blank_lines };     // of text files

// Where the next chunk begins: bytes of (decompressed) text of input number `input` that are done, and the number of its next line (JSONL).
struct ReadPosition {
  int64_t input = 0, offset = 0, line = 1;
};

struct TextPiece {
  size_t begin = 0, size = 0;    // in TextChunk::text
  int64_t at = 0;                // JSONL: line number; text: byte of the input where the piece begins
  bool ends_document = true;
};

struct TextChunk {
  std::string text;              // with room for simdjson's padding behind it
  std::vector<TextPiece> pieces;
  bool jsonl = false;            // pieces are lines to parse, else text
  std::string path;
  ReadPosition end;              // of the chunk
  bool resumable = false;        // `end` is no place inside a document
  int64_t bytes_read = 0;
};

struct ReaderOptions {
  std::vector<std::string> inputs;
  TextFormat format = TextFormat::automatic;
  DocumentSplit split = DocumentSplit::none;
  bool streaming = false;        // documents of text files may be cut anywhere (byte tokenizer); else each is whole in one chunk
  size_t chunk_bytes = size_t{1} << 19;   // read at once, and about as much in a chunk; the documents do not depend on it
};

class DocumentReader {
 public:
  static constexpr size_t most_document_bytes = size_t{256} << 20;

  DocumentReader(ReaderOptions options, ReadPosition from);

  // Replaces `chunk` by the next one; false at the end of the last input. Errors: those of TextInput, an empty line in JSONL, a line or (unless
  // streaming) a document above 256 MiB (ExitCode::data).
  bool next(TextChunk& chunk);

 private:
  bool open();
  bool refill(size_t at_least);
  void next_lines(TextChunk& chunk);
  void next_whole(TextChunk& chunk);
  void next_documents(TextChunk& chunk);
  void finish_input(TextChunk& chunk);
  [[noreturn]] void too_long(const char* what, const std::string& where) const;

  ReaderOptions options_;
  ReadPosition position_;
  std::optional<TextInput> input_;
  std::string ahead_;            // read and not yet given out, from used_ on
  size_t used_ = 0;
  bool ended_ = false;           // the input has no more text
  bool open_document_ = false;   // streaming: the last piece did not end its document,
  bool open_line_ = false;       // nor its line
};

}  // namespace octet::data
