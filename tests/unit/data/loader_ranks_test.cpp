// The shares of a job's ranks.
#include <memory>

#include "unit/data/loader_fixture.h"

namespace octet::data {
namespace {

// The ranks of a job take a step's micro-batches in turn: together they have one process's, and each knows which samples the others read.
TEST_F(Loader, RanksShareOutOneProcessesMicroBatches) {
  const auto set = corpus();
  for (const int64_t ranks : {2, 3}) {
    options.global = 12;
    options.rank = 0;
    options.ranks = 1;
    GptDataset dataset = train(set);
    StepLoader whole(dataset, options);
    std::vector<std::unique_ptr<GptDataset>> datasets;
    std::vector<std::unique_ptr<StepLoader>> shares;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      LoaderOptions own = options;
      own.rank = rank;
      own.ranks = ranks;
      own.readers = 1 + rank;
      datasets.push_back(std::make_unique<GptDataset>(set, 0, set.sequences(), options.seq_len, std::nullopt, 1234));
      shares.push_back(std::make_unique<StepLoader>(*datasets.back(), own));
    }
    for (int step = 0; step < 30; ++step) {   // over an epoch's end
      const StepBatch& all = whole.next();
      int64_t valid = 0;
      for (int64_t rank = 0; rank < ranks; ++rank) {
        const StepBatch& own = shares[static_cast<size_t>(rank)]->next();
        EXPECT_EQ(own.sample_ids, all.sample_ids);
        EXPECT_EQ(own.source_samples, all.source_samples);
        EXPECT_EQ(sample_hash(own), sample_hash(all));
        ASSERT_EQ(own.micro.size(), all.micro.size() / static_cast<size_t>(ranks));
        for (size_t m = 0; m < own.micro.size(); ++m) EXPECT_EQ(own.micro[m].tokens, all.micro[m * static_cast<size_t>(ranks) + static_cast<size_t>(rank)].tokens);
        valid += own.valid_tokens;
      }
      EXPECT_EQ(valid, all.valid_tokens);
    }
  }
}

}  // namespace
}  // namespace octet::data
