// An input file of `octet data build` behind a byte of options: plain, gzip or Zstandard by its content, then cut into documents and checked. What gives
// more than a megabyte of text is not read further. Chunks of a few bytes must give the same documents as large ones.
#include <algorithm>
#include <vector>

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

struct Document {
  std::string text;
  int64_t at;                  // TextPiece::at of its first piece

  bool operator==(const Document&) const = default;
};

// Where the reader could be resumed, and the number of documents it had given until then.
struct Place {
  ReadPosition position;
  size_t documents;
};

// The documents (JSONL: lines) from a place on, and the resumable places on the way.
std::vector<Document> documents(const ReaderOptions& options, ReadPosition from, std::vector<Place>* places = nullptr) {
  std::vector<Document> out;
  DocumentReader reader(options, from);
  TextChunk chunk;
  bool inside = false;
  while (reader.next(chunk)) {
    for (const TextPiece& piece : chunk.pieces) {
      fuzz::require(piece.begin + piece.size <= chunk.text.size(), "pieces are in their chunk");
      if (!inside) out.push_back({{}, piece.at});
      out.back().text.append(chunk.text, piece.begin, piece.size);
      inside = !piece.ends_document;
    }
    fuzz::require(!(chunk.resumable && inside), "no place to resume from is inside a document");
    if (places && chunk.resumable) places->push_back({chunk.end, out.size()});
  }
  return out;
}

// The size of chunks changes nothing, nor does stopping and going on from a chunk's end.
void read_in_other_chunks(ReaderOptions options, size_t chunk_bytes) {
  const std::vector<Document> whole = documents(options, {});
  options.chunk_bytes = chunk_bytes;
  std::vector<Place> places;
  fuzz::require(documents(options, {}, &places) == whole, "documents do not depend on the size of chunks");
  if (places.empty()) return;
  const Place& place = places[places.size() / 2];
  const std::vector<Document> rest(whole.begin() + static_cast<std::ptrdiff_t>(place.documents), whole.end());
  fuzz::require(documents(options, place.position) == rest, "a resumed reader gives the rest of the documents");
}

void read_documents(const std::string& path, uint8_t bits, const std::string& text) {
  ReaderOptions options{{path}, bits & 1 ? TextFormat::jsonl : TextFormat::text, bits & 2 ? DocumentSplit::blank_lines : DocumentSplit::none, (bits & 4) != 0};
  options.chunk_bytes = size_t{1} << 16;
  const auto invalid = options.streaming ? InvalidUtf8::keep : bits & 8 ? InvalidUtf8::replace : InvalidUtf8::refuse;
  constexpr size_t sizes[] = {64, 5, 1, 997};
  // A line is looked for anew with every chunk: no more than 64 chunks of what a small input was decompressed to.
  read_in_other_chunks(options, std::max(sizes[bits >> 4 & 3], text.size() / 64));
  DocumentReader reader(options, {});
  DocumentParser parser("t", invalid);
  TextChunk chunk;
  int64_t bytes = 0;
  while (reader.next(chunk)) {
    bytes += chunk.bytes_read;
    for (const TextPiece& piece : chunk.pieces) fuzz::accepts({ExitCode::data}, [&] { parser.text(chunk, piece); });
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
