// PREFIX.idx: the input. PREFIX.bin: as many zeros as the index describes, where that is little, so that accepted ones are read too.
#include <cstring>

#include "data/indexed_dataset.h"
#include "fuzz.h"

using namespace octet;

namespace {

// Bytes of .bin by the index, as far as it makes sense; 0 otherwise.
uint64_t described_bytes(const uint8_t* data, size_t size) {
  constexpr size_t header = 34;
  constexpr uint64_t item[] = {0, 1, 1, 2, 4, 8, 0, 0, 2}, most = uint64_t{1} << 20;
  if (size < header || data[17] > 8) return 0;
  uint64_t sequences = 0, tokens = 0;
  std::memcpy(&sequences, data + 18, sizeof sequences);
  if (sequences > (size - header) / 4) return 0;
  for (uint64_t i = 0; i < sequences; ++i) {
    int32_t length = 0;
    std::memcpy(&length, data + header + 4 * i, sizeof length);
    if (length < 0) return 0;
    tokens += static_cast<uint64_t>(length);
  }
  return tokens * item[data[17]] <= most ? tokens * item[data[17]] : 0;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fuzz::Scratch scratch;
  scratch.write("set.idx", fuzz::text_of(data, size));
  scratch.write("set.bin", "", described_bytes(data, size));
  fuzz::accepts({ExitCode::data}, [&] {
    const auto set = data::IndexedDataset::open(scratch.path("set").string());
    fuzz::require(set.documents() >= 0 && set.tokens() >= 0, "counts are not negative");
    if (set.documents() > 0) fuzz::require(set.document_end(set.documents() - 1) == set.sequences(), "documents cover all sequences");
    if (set.tokens() > 0) fuzz::require(set.start(set.sequence_of(set.tokens() - 1)) < set.tokens(), "the last token has a sequence");
    fuzz::require(set.max_token() <= 0, "zeros are read");
  });
  return 0;
}
