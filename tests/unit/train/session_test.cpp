#include "train/session.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>

#include "data/indexed_dataset.h"
#include "train/checkpointing.h"
#include "unit/train/small_run.h"

namespace octet::test {
namespace {

class Session : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(dir_); }
  void TearDown() override { std::filesystem::remove_all(dir_); }
  std::filesystem::path dir_ = std::filesystem::temp_directory_path() / ("octet_session_" + std::to_string(getpid()));

  RunConfig config() {
    const std::string prefix = dir_ / "set";
    if (!std::filesystem::exists(prefix + ".idx")) {
      data::IndexedDatasetWriter writer(prefix, data::TokenType::u16);
      for (int32_t d = 0; d < 20; ++d) {
        const std::vector<int32_t> tokens(37, d);
        writer.append(tokens);
        writer.end_document();
      }
      writer.finish();
    }
    RunConfig c = small_config("bf16");
    c.data.train.front().path = prefix;
    c.data.split = "100,0,0";
    c.eval.interval = 0;
    return c;
  }
  static std::vector<int64_t> ids(const DataSession& data, int64_t from, int64_t steps) {
    std::vector<int64_t> out;
    const auto loader = data.loader(from);
    for (int64_t s = 0; s < steps; ++s) {
      const auto& batch = loader->next();
      out.insert(out.end(), batch.sample_ids.begin(), batch.sample_ids.end());
    }
    return out;
  }
};

// The state as part 1 of the project wrote it: one source, its sampler beside it.
TEST_F(Session, CheckpointsFromBeforeBlendsResume) {
  RunConfig c = config();
  c.run.steps = 10;   // 40 samples of 32 tokens: two epochs of 740
  const DataSession first(c);
  const auto planned = ids(first, 0, 10);
  const data::SamplerPin pin = first.train().pin();
  ASSERT_EQ(pin.epochs, 2);

  const std::vector<float> values(4);
  SaveOptions options;
  options.step = 3;
  const nlohmann::json state = {{"code_version", "0.1.0"}, {"step", 3}, {"samples", 12}, {"tokens", 384}, {"optimizer_updates", 3}, {"skipped_steps", 0},
                                {"nonfinite_elements", 0}, {"quantized_elements", nlohmann::json::object()},
                                {"sources", {{{"path", c.data.train.front().path}, {"samples", 12}, {"tokens", 384}}}},
                                {"sampler", {{"epochs", pin.epochs}, {"separate_last_epoch", pin.separate_last_epoch}}}, {"config", to_json(c)}};
  const Checkpoint saved = Checkpoint::open(save_checkpoint(dir_, options, {{"model", "w", Dtype::f32, {4}, values.data()}}, state));
  const RunState read = read_state(saved);
  ASSERT_EQ(read.sources.size(), 1u);
  c.run.steps = 100;   // a longer run: the pin keeps the order
  const DataSession resumed(c, &read.sources, &read.blend, read.samples);
  EXPECT_EQ(ids(resumed, 12, 7), std::vector<int64_t>(planned.begin() + 12, planned.end()));
  EXPECT_EQ(resumed.states().front().samples, 12);
  EXPECT_EQ(resumed.states().front().epoch_tokens, 740);
}

TEST_F(Session, CountersThatContradictTheOrderAreRefused) {
  const RunConfig c = config();
  const DataSession first(c);
  std::vector<SourceState> saved = first.states();
  saved[0].samples = 11;
  const BlendState blend = first.blend_state();
  try {
    DataSession(c, &saved, &blend, 12);
    FAIL() << "resumed with counters that do not add up";
  } catch (const Error& error) {
    EXPECT_EQ(error.code, ExitCode::config);
    EXPECT_NE(std::string(error.what()).find("has read 11 samples"), std::string::npos) << error.what();
  }
}

// Real steps and reads of 50 ms a micro-batch: each step's wait for data, and the step with and without it, in medians.
TEST_F(Session, SlowReadsDoNotSlowTheStep) {
  RunConfig c = config();
  c.data.prefetch = 16;   // 16 readers deliver a micro-batch every 3 ms, faster than one is computed here
  c.model.hidden_size = 256;
  c.model.intermediate_size = 512;
  Engine engine(c);
  const DataSession data(c);
  using Clock = std::chrono::steady_clock;
  const auto ms_since = [](Clock::time_point begin) { return std::chrono::duration<double, std::milli>(Clock::now() - begin).count(); };
  const auto run = [&](data::SampleReader reader, std::vector<double>& waits, std::vector<double>& steps) {
    const auto loader = data.loader(0, std::move(reader));
    for (int64_t s = 0; s < 24; ++s) {
      const auto begin = Clock::now();
      const auto& batch = loader->next();
      if (s > 0) waits.push_back(ms_since(begin));
      engine.step(batch, s);
      if (s > 0) steps.push_back(ms_since(begin));
    }
    std::sort(waits.begin(), waits.end());
    std::sort(steps.begin(), steps.end());
  };
  std::vector<double> fast_waits, fast_steps, slow_waits, slow_steps;
  run({}, fast_waits, fast_steps);
  run([&](const data::GptDataset& d, int64_t i, int32_t* out) {
    if (i % c.batch.micro == 0) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return d.sample(i, out);
  }, slow_waits, slow_steps);
  const auto median = [](const std::vector<double>& v) { return v[v.size() / 2]; };
  RecordProperty("step_ms", std::to_string(median(fast_steps)) + " with fast, " + std::to_string(median(slow_steps)) + " with slow reads");
  printf("step %.2f ms with fast, %.2f ms with slow reads; waiting %.3f and %.3f ms\n", median(fast_steps), median(slow_steps), median(fast_waits), median(slow_waits));
  // The two medians may differ by what else the machine does; the wait is what reads could add.
  EXPECT_LT(median(slow_waits), 0.1 * median(slow_steps));
}

TEST_F(Session, ReadersFollowThePrefetch) {
  RunConfig c = config();
  const auto first = ids(DataSession(c), 0, 6);
  for (int64_t prefetch : {0, 1, 3, 40}) {
    c.data.prefetch = prefetch;
    EXPECT_EQ(ids(DataSession(c), 0, 6), first) << prefetch;
  }
}

}  // namespace
}  // namespace octet::test
