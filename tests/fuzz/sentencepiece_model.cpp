// A SentencePiece model behind a byte n and a text of n bytes to encode and decode. The library itself is not instrumented.
#include "data/sentencepiece.h"
#include "data/unicode.h"
#include "fuzz.h"

using namespace octet;
using namespace octet::data;

namespace sentencepiece::logging {
void SetMinLogLevel(int level);   // exported by the library, in no header of it
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  sentencepiece::logging::SetMinLogLevel(3);
  if (size == 0) return 0;
  const size_t length = std::min<size_t>(data[0], size - 1);
  const std::string text = replace_invalid_utf8(fuzz::text_of(data + 1, length));
  fuzz::accepts({ExitCode::config, ExitCode::data}, [&] {
    const SentencePieceModel model = SentencePieceModel::parse(fuzz::text_of(data + 1 + length, size - 1 - length), "m.model");
    const auto eos = model.eos_id();
    fuzz::require(!eos || *eos < model.vocab_size(), "the end is a piece");
    std::vector<int32_t> ids;
    model.encode(text, ids);
    for (const int32_t id : ids) fuzz::require(id >= 0 && id < model.vocab_size(), "ids are the model's");
    model.decode(ids);
  });
  return 0;
}
