// A small corpus and the options to load it with.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "data/loader.h"
#include "unit/data/test_files.h"

namespace octet::data {

inline constexpr int32_t eod = 256;

struct Loader : ::testing::Test {
  TemporaryDirectory directory;
  std::string prefix = directory / "set";
  LoaderOptions options;

  Loader() {
    options.micro = 2;
    options.global = 6;
    options.seq_len = 8;
    options.vocab_size = 257;
  }
  // 40 documents of 5..23 tokens, each ended by EOD; 2 steps short of an epoch boundary that falls inside a step.
  IndexedDataset corpus() {
    std::vector<int64_t> lengths;
    for (int64_t d = 0; d < 40; ++d) lengths.push_back(5 + d * 7 % 19);
    write_documents(prefix, lengths, [&](int64_t s, int64_t p) {
      return p + 1 == lengths[static_cast<size_t>(s)] ? eod : static_cast<int32_t>((31 * s + p) % 256);
    });
    return IndexedDataset::open(prefix);
  }
  GptDataset train(const IndexedDataset& set, std::optional<int64_t> samples = std::nullopt) { return {set, 0, set.sequences(), options.seq_len,
      samples, 1234}; }
};

}  // namespace octet::data
