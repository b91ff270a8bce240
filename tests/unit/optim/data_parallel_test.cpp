// How rows are dealt to shards.
#include "optim/data_parallel.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace octet {
namespace {

TEST(DealRows, WholeGroupsInOrderAsEvenAsTheyGo) {
  for (const size_t shards : {1u, 2u, 3u, 4u, 7u, 64u}) {
    std::vector<int64_t> elements(shards), counted(shards);
    int64_t total = 0;
    // A layer of a 768-wide model, some times, and odd tensors.
    for (int layer = 0; layer < 12; ++layer) {
      for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{768, 1}, {768, 768}, {256, 768}, {256, 768}, {768, 768}, {2048, 768}, {2048, 768}, {768, 2048}, {64, 3}, {129, 5}}) {
        const std::vector<RowRange> ranges = deal_rows(rows, cols, elements);
        ASSERT_EQ(ranges.size(), shards);
        int64_t next = 0, least = rows, most = 0;
        for (size_t s = 0; s < shards; ++s) {
          EXPECT_EQ(ranges[s].first, next) << "shards follow each other";
          EXPECT_TRUE(ranges[s].count == 0 || ranges[s].first % 128 == 0) << "and begin with a group";
          next += ranges[s].count;
          counted[s] += ranges[s].count * cols;
          least = std::min(least, (ranges[s].count + 127) / 128);
          most = std::max(most, (ranges[s].count + 127) / 128);
        }
        EXPECT_EQ(next, rows) << "no row is left over";
        EXPECT_LE(most - least, 1) << rows << " rows, " << shards << " shards";
        total += rows * cols;
      }
    }
    EXPECT_EQ(counted, elements);
    const int64_t largest = *std::max_element(elements.begin(), elements.end());
    EXPECT_LE(static_cast<double>(largest), 1.01 * static_cast<double>(total) / static_cast<double>(shards) + 128 * 2048) << "no shard has more than its part and a group";
  }
}

}  // namespace
}  // namespace octet
