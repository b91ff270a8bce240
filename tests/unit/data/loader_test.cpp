#include "data/loader.h"

#include <chrono>
#include <memory>
#include <set>
#include <thread>

#include "unit/data/loader_fixture.h"

namespace octet::data {
namespace {

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

TEST_F(Loader, ManyReadersGiveTheSameBatches) {
  const auto set = corpus();
  const GptDataset dataset = train(set);
  options.prefetch_steps = 2;
  Listed first;
  for (int64_t readers : {1, 2, 7}) {
    options.readers = readers;
    // Reads that end out of order.
    StepLoader loader(dataset, options, [](const GptDataset& d, int64_t i, int32_t* out) {
      std::this_thread::sleep_for(std::chrono::microseconds(100 * (i * 7 % 5)));
      return d.sample(i, out);
    });
    Listed listed;
    for (int64_t step = 0; step < 40; ++step) {
      const StepBatch& batch = loader.next();
      EXPECT_EQ(batch.first_sample, 6 * step);
      EXPECT_EQ(batch.valid_tokens, 6 * 8);
      list(batch, listed);
    }
    if (readers == 1) first = listed;
    EXPECT_EQ(listed, first);
  }
}

// Steps of `step_ms` that find a batch of `read_ms`: milliseconds waited for data in each step behind the first ones. Both are
// slept, so that a busy machine does not change the verdict.
std::vector<double> waits(const GptDataset& dataset, const LoaderOptions& options, int read_ms, int step_ms, int steps) {
  using Clock = std::chrono::steady_clock;
  StepLoader loader(dataset, options, [&](const GptDataset& d, int64_t i, int32_t* out) {
    if (i % options.micro == 0) std::this_thread::sleep_for(std::chrono::milliseconds(read_ms));
    return d.sample(i, out);
  });
  std::vector<double> all;
  for (int step = 0; step < steps; ++step) {
    const auto begin = Clock::now();
    loader.next();
    if (step > 0) all.push_back(std::chrono::duration<double, std::milli>(Clock::now() - begin).count());
    std::this_thread::sleep_for(std::chrono::milliseconds(step_ms));
  }
  std::sort(all.begin(), all.end());
  return all;
}

TEST_F(Loader, SlowReadsAreHidden) {
  const auto set = corpus();
  const GptDataset dataset = train(set);
  const auto median = [](const std::vector<double>& v) { return v[v.size() / 2]; };
  options.global = options.micro = 2;
  options.prefetch_steps = 1;
  EXPECT_LT(median(waits(dataset, options, 50, 60, 10)), 5.0);        // a step longer than the read: one batch ahead is enough
  options.prefetch_steps = 4;
  options.readers = 4;
  EXPECT_LT(median(waits(dataset, options, 50, 20, 24)), 5.0);        // a shorter one: four readers deliver a batch every 12.5 ms
  options.readers = 1;
  EXPECT_GT(median(waits(dataset, options, 50, 20, 10)), 20.0);       // and one reader does not: the test sees what it is about
  options.global = 8;                                                  // four micro-batches a step share the readers
  options.prefetch_steps = 1;
  options.readers = 4;
  EXPECT_LT(median(waits(dataset, options, 50, 70, 8)), 5.0);
}

TEST_F(Loader, FirstFailureInSampleOrderIsThrown) {
  const auto set = corpus();
  const GptDataset dataset = train(set);
  options.micro = 1;
  options.readers = 6;
  for (int round = 0; round < 5; ++round) {
    StepLoader loader(dataset, options, [](const GptDataset& d, int64_t i, int32_t* out) {
      if (i == 8) std::this_thread::sleep_for(std::chrono::milliseconds(5));   // of the second step, fails last
      if (i == 8 || i == 10) throw Error(ExitCode::data, "sample " + std::to_string(i), "disk", "wait");
      return d.sample(i, out);
    });
    EXPECT_EQ(loader.next().first_sample, 0);
    for (int again = 0; again < 2; ++again) expect_error(ExitCode::data, "sample 8", [&] { loader.next(); });
  }
}

TEST_F(Loader, BlendsFollowTheOrderOverStops) {
  std::vector<TokenSource> sets;
  for (int64_t k = 0; k < 3; ++k) {
    const std::string name_of = prefix + std::to_string(k);
    write_documents(name_of, std::vector<int64_t>(static_cast<size_t>(3 + 9 * k), 11), [k](int64_t s, int64_t p) { return static_cast<int32_t>(80 * k + (s + p) % 80); });
    sets.push_back(TokenSource::open(name_of));
  }
  const auto order = [](bool exhaustive) { return exhaustive ? BlendOrder::exhaustive({4, 16, 28}) : BlendOrder::weighted({0.5, 0.3, 0.2}); };
  for (const bool exhaustive : {false, true}) {
    std::vector<std::unique_ptr<GptDataset>> owned;
    std::vector<const GptDataset*> sources;
    for (const auto& set : sets) {
      owned.push_back(std::make_unique<GptDataset>(set, 0, set.sequences(), 8, exhaustive ? std::nullopt : std::optional<int64_t>(30), 1234));
      sources.push_back(owned.back().get());
    }
    if (exhaustive) {
      EXPECT_EQ(sources[2]->size(), 28);
    }
    options.readers = 3;
    Listed straight, stopped;
    std::vector<uint64_t> hashes;
    std::vector<int64_t> counted(3);
    constexpr int64_t steps = 30;
    {
      StepLoader loader(sources, order(exhaustive), options);
      BlendOrder expected = order(exhaustive);
      std::vector<int32_t> window(9);
      for (int64_t step = 0; step < steps; ++step) {
        const StepBatch& batch = loader.next();
        list(batch, straight);
        hashes.push_back(sample_hash(batch));
        for (size_t k = 0; k < 3; ++k) counted[k] += batch.source_samples[k];
        for (size_t i = 0; i < 6; ++i) {
          const BlendPick pick = expected.next();
          EXPECT_EQ(batch.sample_sources[i], pick.source);
          EXPECT_EQ(batch.sample_ids[i], sources[static_cast<size_t>(pick.source)]->sample_id(pick.sample));
          sources[static_cast<size_t>(pick.source)]->sample(pick.sample, window.data());
          EXPECT_TRUE(std::equal(window.begin(), window.begin() + 8, batch.micro[i / 2].tokens.begin() + static_cast<std::ptrdiff_t>(i % 2 * 8)));
        }
        EXPECT_EQ(counted, expected.taken());
      }
    }
    for (int64_t step = 0; step < steps; ++step) {
      LoaderOptions from = options;
      from.first_sample = step * options.global;
      StepLoader loader(sources, order(exhaustive), from);
      const StepBatch& batch = loader.next();
      list(batch, stopped);
      EXPECT_EQ(sample_hash(batch), hashes[static_cast<size_t>(step)]);
    }
    EXPECT_EQ(straight, stopped);
  }
}

TEST_F(Loader, AnOrderThatEndsIsReportedInItsTurn) {
  const auto set = corpus();
  const GptDataset dataset = train(set);
  options.readers = 2;
  StepLoader loader({&dataset}, BlendOrder::recorded(std::vector<int16_t>(16), 1), options);
  for (int64_t step = 0; step < 2; ++step) EXPECT_EQ(loader.next().first_sample, 6 * step);
  for (int again = 0; again < 2; ++again) expect_error(ExitCode::data, "the blend order has 16 samples", [&] { loader.next(); });
}

TEST_F(Loader, PartialSamplesArePaddedWithoutLoss) {
  write_documents(prefix, {5, 8}, [](int64_t s, int64_t p) { return static_cast<int32_t>(1 + 10 * s + p); });   // 13 tokens: 8 + 1, then 5
  const auto set = IndexedDataset::open(prefix);
  const GptDataset drop(set, 0, 2, 8, std::nullopt, 7), pad(set, 0, 2, 8, std::nullopt, 7, std::nullopt, "train", true);
  EXPECT_EQ(drop.size(), 1);
  EXPECT_EQ(pad.size(), 2);
  EXPECT_EQ(pad.file_order_size(), 2);
  options.micro = options.global = 2;
  const auto valid = fixed_batches(pad, 10, options);
  ASSERT_EQ(valid.size(), 1u);
  EXPECT_EQ(valid[0].tokens, (std::vector<int32_t>{1, 2, 3, 4, 5, 11, 12, 13, 14, 15, 16, 17, 18, 0, 0, 0}));
  EXPECT_EQ(valid[0].labels, (std::vector<int32_t>{2, 3, 4, 5, 11, 12, 13, 14, 15, 16, 17, 18, -1, -1, -1, -1}));
  EXPECT_EQ(valid[0].valid_tokens, 12);
  options.pad_id = 17;   // also a token of the text: no loss where it is the target, loss where it is the input
  const auto with_id = fixed_batches(pad, 10, options);
  EXPECT_EQ(with_id[0].tokens, (std::vector<int32_t>{1, 2, 3, 4, 5, 11, 12, 13, 14, 15, 16, 17, 18, 17, 17, 17}));
  EXPECT_EQ(with_id[0].labels, (std::vector<int32_t>{2, 3, 4, 5, 11, 12, 13, 14, 15, 16, -1, 18, -1, -1, -1, -1}));
  EXPECT_EQ(with_id[0].valid_tokens, 11);

  // Training: both windows of the stream, whatever their order; every token but the stream's first is a target once.
  options.pad_id.reset();
  StepLoader loader(pad, options);
  for (int64_t block = 0; block < 3; ++block) {
    const StepBatch& batch = loader.next();
    EXPECT_EQ(batch.valid_tokens, 12);
    std::multiset<int32_t> targets(batch.micro[0].labels.begin(), batch.micro[0].labels.end());
    EXPECT_EQ(targets.count(-1), 4u);
    EXPECT_EQ(std::set<int32_t>(targets.begin(), targets.end()).size(), 13u);
    EXPECT_EQ(std::set<int64_t>(batch.sample_ids.begin(), batch.sample_ids.end()), (std::set<int64_t>{2 * block, 2 * block + 1}));
  }
}

TEST_F(Loader, BlendedWindowsShareByWeightAndUseUpSplits) {
  const auto set = corpus();
  const GptDataset small(set, 0, 4, 8, std::nullopt, 1), large(set, 4, 40, 8, std::nullopt, 1);
  const int64_t few = small.file_order_size();
  const auto windows = blended_windows({&small, &large}, {1, 1}, 2 * few + 10);
  std::vector<int64_t> next(2);
  for (size_t i = 0; i < windows.size(); ++i) {
    const size_t k = windows[i].dataset == &large;
    EXPECT_EQ(windows[i].window, next[k]++);
    if (i % 2 == 1 && static_cast<int64_t>(i) < 2 * few) {
      EXPECT_EQ(next[0], next[1]);
    }
  }
  EXPECT_EQ(next, (std::vector<int64_t>{few, few + 10}));
  EXPECT_EQ(static_cast<int64_t>(blended_windows({&small, &large}, {}, 1000000).size()), few + large.file_order_size());
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
