#include "data/statistics.h"

#include <cmath>
#include <map>

namespace octet::data {

TokenHistogram token_histogram(const TokenSource& set) {
  constexpr int64_t dense_ids = int64_t{1} << 20;  // a table for the ids of any real vocabulary, a map for strays
  std::vector<int64_t> dense;
  std::map<int64_t, int64_t> sparse;
  set.scan([&](int64_t, std::span<const int64_t> ids) {
    for (int64_t id : ids) {
      if (id < 0 || id >= dense_ids) {
        ++sparse[id];
        continue;
      }
      if (static_cast<size_t>(id) >= dense.size()) dense.resize(static_cast<size_t>(id) + 1);
      ++dense[static_cast<size_t>(id)];
    }
  });
  TokenHistogram histogram;
  histogram.tokens = set.tokens();
  const auto above = sparse.lower_bound(0);
  histogram.counts.assign(sparse.begin(), above);
  for (size_t id = 0; id < dense.size(); ++id) {
    if (dense[id] > 0) histogram.counts.emplace_back(static_cast<int64_t>(id), dense[id]);
  }
  histogram.counts.insert(histogram.counts.end(), above, sparse.end());
  return histogram;
}

double unigram_entropy(const TokenHistogram& histogram) {
  double sum = 0;
  for (const auto& [id, count] : histogram.counts) {
    const double p = static_cast<double>(count) / static_cast<double>(histogram.tokens);
    sum -= p * std::log(p);
  }
  return sum;
}

double unigram_entropy(const TokenSource& set) { return unigram_entropy(token_histogram(set)); }

}  // namespace octet::data
