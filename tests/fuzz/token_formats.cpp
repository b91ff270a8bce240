// Token files, the first byte tells which: llm.c (the 1,012 unused bytes of its header are put in), the same as it is, raw, datatrove's index for a
// token file of any size, its metadata, its mask.
#include <cstring>

#include "data/datatrove.h"
#include "data/llmc.h"
#include "data/raw_tokens.h"
#include "fuzz.h"

using namespace octet;
using namespace octet::data;

namespace {

ByteReader memory(std::string_view bytes) { return ByteReader::of({reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size()}, "file"); }

void check(const TokenLayout& layout, uint64_t bytes) {
  fuzz::require(std::is_sorted(layout.starts.begin(), layout.starts.end()) && layout.starts[0] == 0, "sequences follow one another");
  fuzz::require(layout.document_ends.back() == layout.sequences(), "documents cover all sequences");
  fuzz::require(layout.first_byte + static_cast<uint64_t>(layout.tokens()) * static_cast<uint64_t>(size_bytes(layout.type)) == bytes, "tokens fill the file");
}

void datatrove(std::string_view rest, bool with_metadata) {
  if (rest.size() < 8) return;
  ByteReader ds = memory("");
  std::memcpy(&ds.bytes, rest.data(), 8);
  std::optional<DatatroveMetadata> metadata;
  if (with_metadata) metadata = DatatroveMetadata{ds.bytes % 4 == 0 ? TokenType::u32 : TokenType::u16, static_cast<int64_t>(ds.bytes / (ds.bytes % 4 == 0 ? 4 : 2)), ""};
  check(parse_datatrove(ds, memory(rest.substr(8)), metadata), ds.bytes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const int64_t eod = data[1];
  const std::string_view rest = fuzz::text_of(data + 2, size - 2);
  fuzz::accepts({ExitCode::data}, [&] {
    switch (data[0] % 8) {
      case 0: {
        std::string file(rest.substr(0, 12));
        file += std::string(1012, '\0') + std::string(rest.substr(file.size()));
        looks_like_llmc(memory(file));
        check(parse_llmc(memory(file), eod), file.size());
        break;
      }
      case 1: check(parse_llmc(memory(rest), eod), rest.size()); break;
      case 2: check(raw_layout(memory(rest), TokenType::u16, eod), rest.size()); break;
      case 3: check(raw_layout(memory(rest), TokenType::u32, eod), rest.size()); break;
      case 4:
      case 5: datatrove(rest, data[0] % 2 == 0); break;
      case 6: fuzz::require(parse_datatrove_metadata(memory(rest)).tokens >= 0, "counts are not negative"); break;
      default: check_datatrove_loss(memory(rest), eod);
    }
  });
  return 0;
}
