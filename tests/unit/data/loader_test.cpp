#include "data/loader.h"

#include <chrono>
#include <set>
#include <thread>

#include "unit/data/test_files.h"

namespace octet::data {
namespace {

constexpr int32_t eod = 256;

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

struct Listed {
  std::vector<int64_t> ids;
  std::vector<int32_t> tokens;
  bool operator==(const Listed&) const = default;
};

void list(const StepBatch& step, Listed& out) {
  out.ids.insert(out.ids.end(), step.sample_ids.begin(), step.sample_ids.end());
  for (const MicroBatch& micro : step.micro) out.tokens.insert(out.tokens.end(), micro.tokens.begin(), micro.tokens.end());
}

TEST_F(Loader, StopAfterEveryStepEqualsUninterrupted) {
  const auto set = corpus();
  for (std::optional<int64_t> samples : {std::optional<int64_t>(), std::optional<int64_t>(150)}) {
    GptDataset dataset = train(set, samples);
    const int64_t samples_per_epoch = (set.tokens() - 1) / options.seq_len;
    const int64_t steps = 3 * samples_per_epoch / options.global + 1;  // over three epochs, whatever the block size
    ASSERT_NE(samples_per_epoch % options.global, 0);
    Listed straight, stopped;
    {
      StepLoader loader(dataset, options);
      for (int64_t step = 0; step < steps; ++step) {
        const StepBatch& batch = loader.next();
        EXPECT_EQ(batch.first_sample, step * options.global);
        list(batch, straight);
      }
    }
    for (int64_t step = 0; step < steps; ++step) {
      GptDataset fresh = train(set, samples);
      LoaderOptions from = options;
      from.first_sample = step * options.global;
      StepLoader loader(fresh, from);
      list(loader.next(), stopped);
    }
    EXPECT_EQ(straight, stopped);
    // Each block of samples is a partition of its windows.
    for (int64_t block = 0; block < steps * options.global / dataset.size(); ++block) {
      const std::set<int64_t> ids(straight.ids.begin() + block * dataset.size(), straight.ids.begin() + (block + 1) * dataset.size());
      EXPECT_EQ(static_cast<int64_t>(ids.size()), dataset.size());
      EXPECT_EQ(*ids.begin(), block * dataset.size());
      EXPECT_EQ(*ids.rbegin(), (block + 1) * dataset.size() - 1);
    }
  }
}

TEST_F(Loader, BatchesAreTheDatasetsSamples) {
  const auto set = corpus();
  GptDataset dataset = train(set), expected = train(set);
  StepLoader loader(dataset, options);
  std::vector<int32_t> window(9);
  for (int64_t step = 0; step < 5; ++step) {
    const StepBatch& batch = loader.next();
    ASSERT_EQ(batch.micro.size(), 3u);
    EXPECT_EQ(batch.valid_tokens, 6 * 8);
    for (int64_t i = 0; i < 6; ++i) {
      const MicroBatch& micro = batch.micro[static_cast<size_t>(i / 2)];
      EXPECT_EQ(micro.samples, 2);
      EXPECT_EQ(micro.valid_tokens, 16);
      EXPECT_EQ(batch.sample_ids[static_cast<size_t>(i)], expected.sample_id(step * 6 + i));
      expected.sample(step * 6 + i, window.data());
      for (int64_t t = 0; t < 8; ++t) {
        const auto at = static_cast<size_t>(i % 2 * 8 + t);
        EXPECT_EQ(micro.tokens[at], window[static_cast<size_t>(t)]);
        EXPECT_EQ(micro.labels[at], window[static_cast<size_t>(t) + 1]);
        EXPECT_EQ(micro.positions[at], t);
        EXPECT_EQ(micro.document_start[at], 0);
      }
    }
  }
}

TEST_F(Loader, MicroBatchSizeDoesNotChangeTheSamples) {
  const auto set = corpus();
  Listed first;
  for (int64_t micro : {1, 2, 3, 6}) {
    GptDataset dataset = train(set);
    options.micro = micro;
    StepLoader loader(dataset, options);
    Listed listed;
    for (int step = 0; step < 4; ++step) list(loader.next(), listed);
    if (micro == 1) first = listed;
    EXPECT_EQ(listed, first);
  }
}

TEST_F(Loader, AnyPrefetchDepthGivesTheSame) {
  const auto set = corpus();
  Listed first;
  for (int64_t depth : {0, 1, 2, 7}) {
    GptDataset dataset = train(set);
    options.prefetch_steps = depth;
    StepLoader loader(dataset, options);
    Listed listed;
    for (int step = 0; step < 60; ++step) list(loader.next(), listed);
    if (depth == 0) first = listed;
    EXPECT_EQ(listed, first);
  }
}

TEST_F(Loader, BatchStaysUntilTheNextCallAndBuffersAreReused) {
  const auto set = corpus();
  GptDataset dataset = train(set);
  options.prefetch_steps = 2;
  StepLoader loader(dataset, options);
  std::set<const int32_t*> buffers;
  for (int step = 0; step < 30; ++step) {
    const StepBatch& batch = loader.next();
    buffers.insert(batch.micro[0].tokens.data());
    const auto before = batch.micro[0].tokens;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(batch.micro[0].tokens, before);
  }
  EXPECT_EQ(buffers.size(), 3u);
}

MicroBatch row_of(const std::vector<int32_t>& window, const LoaderOptions& options) {
  MicroBatch batch;
  const size_t n = window.size() - 1;
  batch.samples = 1;
  batch.seq_len = static_cast<int64_t>(n);
  for (auto* array : {&batch.tokens, &batch.labels, &batch.positions, &batch.document_start}) array->resize(n);
  fill_row(batch, 0, window.data(), options);
  return batch;
}

TEST_F(Loader, DocumentOptions) {
  const std::vector<int32_t> window = {5, 6, eod, 7, eod, eod, 8, 9, eod};
  MicroBatch plain = row_of(window, options);
  EXPECT_EQ(plain.labels, (std::vector<int32_t>{6, eod, 7, eod, eod, 8, 9, eod}));
  EXPECT_EQ(plain.positions, (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(plain.document_start, std::vector<int32_t>(8, 0));
  EXPECT_EQ(plain.valid_tokens, 8);

  options.document_mask = true;
  MicroBatch masked = row_of(window, options);
  EXPECT_EQ(masked.document_start, (std::vector<int32_t>{0, 0, 0, 3, 3, 5, 6, 6}));
  EXPECT_EQ(masked.positions, plain.positions);

  options.reset_position_ids = true;
  options.eod_mask_loss = true;
  MicroBatch all = row_of(window, options);
  EXPECT_EQ(all.document_start, masked.document_start);
  EXPECT_EQ(all.positions, (std::vector<int32_t>{0, 1, 2, 0, 1, 0, 0, 1}));
  EXPECT_EQ(all.labels, (std::vector<int32_t>{6, eod, -1, eod, -1, -1, 9, eod}));
  EXPECT_EQ(all.valid_tokens, 5);

  options.document_mask = false;
  EXPECT_EQ(row_of(window, options).document_start, plain.document_start);
  EXPECT_EQ(row_of(window, options).positions, all.positions);
}

TEST_F(Loader, ValidTokensAreCountedOverTheStep) {
  const auto set = corpus();
  GptDataset dataset = train(set);
  options.eod_mask_loss = true;
  StepLoader loader(dataset, options);
  for (int step = 0; step < 10; ++step) {
    const StepBatch& batch = loader.next();
    int64_t valid = 0, eods = 0;
    for (const MicroBatch& micro : batch.micro) {
      valid += micro.valid_tokens;
      for (size_t t = 0; t < micro.tokens.size(); ++t) {
        EXPECT_EQ(micro.labels[t] == -1, micro.tokens[t] == eod);
        eods += micro.tokens[t] == eod;
      }
    }
    EXPECT_EQ(batch.valid_tokens, valid);
    EXPECT_EQ(batch.valid_tokens, options.global * options.seq_len - eods);
  }
}

TEST_F(Loader, BadTokenIsRethrownInItsTurn) {
  // Token 300 stands at sequence 1, position 4, in the third window of the file.
  write_documents(prefix, {20, 40}, [](int64_t s, int64_t p) { return s == 1 && p == 4 ? 300 : static_cast<int32_t>(p); });
  const auto set = IndexedDataset::open(prefix);
  GptDataset dataset(set, 0, 2, 8, std::nullopt, 3), probe(set, 0, 2, 8, std::nullopt, 3);
  options.micro = options.global = 1;
  int64_t bad = 0;
  std::vector<int32_t> window(9);
  for (;; ++bad) {
    probe.sample(bad, window.data());
    if (std::find(window.begin(), window.end(), 300) != window.end()) break;
  }
  for (int64_t depth : {0, 1, 20}) {
    GptDataset fresh(set, 0, 2, 8, std::nullopt, 3);
    options.prefetch_steps = depth;
    StepLoader loader(fresh, options);
    for (int64_t step = 0; step < bad; ++step) EXPECT_EQ(loader.next().first_sample, step);
    for (int again = 0; again < 2; ++again) {
      expect_error(ExitCode::data, "set.bin: sequence 1, position 4: token id 300 is outside the vocabulary of 257 ids", [&] { loader.next(); });
    }
  }
}

TEST_F(Loader, NegativeTokenIsRefused) {
  write_documents(prefix, {20}, [](int64_t, int64_t p) { return p == 10 ? 200 : static_cast<int32_t>(p); }, TokenType::u8);
  std::string idx = read_bytes(prefix + ".idx");
  idx[17] = 2;  // the same bytes as int8: 200 reads as -56
  write_bytes(prefix + ".idx", idx);
  const auto set = IndexedDataset::open(prefix);
  GptDataset dataset = train(set);
  StepLoader loader(dataset, options);
  expect_error(ExitCode::data, "sequence 0, position 10: token id -56", [&] { loader.next(); });
}

TEST_F(Loader, FileThatShrinksIsRethrown) {
  const auto set = corpus();
  GptDataset dataset = train(set);
  std::filesystem::resize_file(prefix + ".bin", 0);
  StepLoader loader(dataset, options);
  expect_error(ExitCode::data, "set.bin: ends at byte", [&] { loader.next(); });
}

TEST_F(Loader, DestructionWhileReadingAhead) {
  const auto set = corpus();
  for (int i = 0; i < 50; ++i) {
    GptDataset dataset = train(set);
    StepLoader loader(dataset, options);
    if (i % 2) {
      EXPECT_EQ(loader.next().first_sample, 0);
    }
  }
}

TEST_F(Loader, InconsistentOptionsAreOurBug) {
  const auto set = corpus();
  GptDataset dataset = train(set);
  options.micro = 4;
  expect_error(ExitCode::internal, "global batch 6 of micro-batches of 4", [&] { StepLoader(dataset, options); });
  options.micro = 2;
  options.seq_len = 7;
  expect_error(ExitCode::internal, "loader seq_len 7, dataset seq_len 8", [&] { StepLoader(dataset, options); });
}

TEST_F(Loader, FixedBatchesAreTheFirstWindowsInFileOrder) {
  const auto set = corpus();
  const GptDataset valid(set, 30, 40, 8, std::nullopt, 1, std::nullopt, "valid");
  options.micro = 3;
  options.global = 3;
  const auto batches = fixed_batches(valid, 7, options);
  ASSERT_EQ(batches.size(), 3u);
  EXPECT_EQ(batches[2].samples, 1);
  EXPECT_EQ(batches[2].tokens.size(), 8u);
  std::vector<int32_t> flat(7 * 8 + 1), tokens, labels;
  set.read_flat(set.start(30), 7 * 8 + 1, flat.data());
  int64_t valid_tokens = 0;
  for (const MicroBatch& micro : batches) {
    tokens.insert(tokens.end(), micro.tokens.begin(), micro.tokens.end());
    labels.insert(labels.end(), micro.labels.begin(), micro.labels.end());
    valid_tokens += micro.valid_tokens;
  }
  EXPECT_EQ(tokens, std::vector<int32_t>(flat.begin(), flat.end() - 1));
  EXPECT_EQ(labels, std::vector<int32_t>(flat.begin() + 1, flat.end()));
  EXPECT_EQ(valid_tokens, 56);

  int64_t all = 0;
  for (const MicroBatch& micro : fixed_batches(valid, 1000000, options)) all += micro.samples;
  EXPECT_EQ(all, valid.file_order_size());
  expect_error(ExitCode::config, "validation set of 0 samples", [&] { fixed_batches(valid, 0, options); });
  options.vocab_size = 256;
  expect_error(ExitCode::data, "token id 256 is outside the vocabulary of 256 ids", [&] { fixed_batches(valid, 7, options); });
}

}  // namespace
}  // namespace octet::data
