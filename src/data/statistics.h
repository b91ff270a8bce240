// Token counts of a file and what follows from them.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

#include "data/token_source.h"

namespace octet::data {

struct TokenHistogram {
  std::vector<std::pair<int64_t, int64_t>> counts;  // (id, count > 0), rising ids
  int64_t tokens = 0;
};

// Reads the whole file.
TokenHistogram token_histogram(const TokenSource& set);

// -sum p ln p over the distinct ids, in nats a token: the loss of the best model that ignores context. 0 without tokens.
double unigram_entropy(const TokenHistogram& histogram);
double unigram_entropy(const TokenSource& set);

}  // namespace octet::data
