// An input file of `octet data build` behind a byte of options: plain, gzip or Zstandard by its content, then cut into documents and checked. What gives
// more than a megabyte of text is not read further.
#include "data/build_parse.h"
#include "fuzz.h"

using namespace octet;
using namespace octet::data;

namespace {

constexpr size_t most_text = size_t{1} << 20;

// All of the text, or nothing when it is more than most_text; in pieces of `step` bytes, from byte `from` on.
bool read_text(const std::string& path, size_t step, int64_t from, std::string& text) {
  TextInput input(path);
  input.skip(from);
  text.clear();
  while (text.size() <= most_text) {
    const size_t before = text.size();
    text.resize(before + step);
    text.resize(before + input.read(text.data() + before, step));
    if (text.size() == before) return true;
  }
  return false;
}

void read_documents(const std::string& path, uint8_t options, const std::string& text) {
  ReaderOptions reader_options{{path}, options & 1 ? TextFormat::jsonl : TextFormat::text, options & 2 ? DocumentSplit::blank_lines : DocumentSplit::none, (options & 4) != 0};
  const auto invalid = reader_options.streaming ? InvalidUtf8::keep : options & 8 ? InvalidUtf8::replace : InvalidUtf8::refuse;
  DocumentReader reader(reader_options, {});
  DocumentParser parser("t", invalid);
  TextChunk chunk;
  int64_t bytes = 0;
  while (reader.next(chunk)) {
    bytes += chunk.bytes_read;
    for (const TextPiece& piece : chunk.pieces) {
      fuzz::require(piece.begin + piece.size <= chunk.text.size(), "pieces are in their chunk");
      fuzz::accepts({ExitCode::data}, [&] { parser.text(chunk, piece); });
    }
  }
  fuzz::require(bytes == static_cast<int64_t>(text.size()), "all of the text is read");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fuzz::Scratch scratch;
  if (size == 0) return 0;
  scratch.write("input", fuzz::text_of(data + 1, size - 1));
  const std::string path = scratch.path("input").string();
  fuzz::accepts({ExitCode::data}, [&] {
    std::string text, behind;
    if (!read_text(path, size_t{1} << 16, 0, text)) return;
    const size_t from = text.size() / 2;
    fuzz::require(read_text(path, 997, static_cast<int64_t>(from), behind) && behind == text.substr(from), "text goes on behind a place that is skipped to");
    read_documents(path, data[0], text);
  });
  return 0;
}
