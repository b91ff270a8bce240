#include "train/session.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

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
