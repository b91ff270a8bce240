#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "train/checkpointing.h"
#include "unit/train/small_run.h"

namespace octet::test {
namespace {

class Resume : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { std::filesystem::create_directories(dir_); }
  void TearDown() override { std::filesystem::remove_all(dir_); }
  std::filesystem::path dir_ = std::filesystem::temp_directory_path() / ("octet_resume_" + std::to_string(getpid()));
};

TEST_P(Resume, IsBitwise) {
  RunConfig c = small_config(GetParam());
  const nlohmann::json resolved = to_json(c);
  Engine straight(c);
  const auto want = losses(straight, c, 0, 6);

  Engine first(c);
  losses(first, c, 0, 3);
  RunState state;
  state.step = 3;
  state.samples = 12;
  state.tokens = 384;
  SourceState a, b;
  a.path = "a";
  a.samples = 8;
  a.tokens = 256;
  a.sampler = {3, true};
  a.epoch_tokens = 1000;
  a.block_samples = 93;
  a.index_cache = 0xfedcba9876543210ull;
  a.weight = 0.75;
  b.path = "b";
  b.samples = 4;
  b.tokens = 128;
  state.sources = {a, b};
  state.blend = {80, 17};
  const auto path = save_run(dir_, 0, first, state, resolved);

  const Checkpoint saved = Checkpoint::open(path);
  const RunState read = read_state(saved);
  EXPECT_EQ(read.samples, 12);
  ASSERT_EQ(read.sources.size(), 2u);
  EXPECT_EQ(read.sources[0].path, "a");
  EXPECT_EQ(read.sources[0].samples, 8);
  EXPECT_EQ(read.sources[0].tokens, 256);
  EXPECT_EQ(read.sources[0].sampler, (data::SamplerPin{3, true}));
  EXPECT_EQ(read.sources[0].epoch_tokens, 1000);
  EXPECT_EQ(read.sources[0].block_samples, 93);
  EXPECT_EQ(read.sources[0].index_cache, 0xfedcba9876543210ull);
  EXPECT_EQ(read.sources[0].weight, 0.75);
  EXPECT_EQ(read.sources[1].samples, 4);
  EXPECT_FALSE(read.sources[1].weight || read.sources[1].index_cache || read.sources[1].epoch_tokens);
  EXPECT_EQ(read.blend.samples, 80);
  EXPECT_EQ(read.blend.cache, 17);
  Engine second(c);
  EXPECT_TRUE(restore_run(saved, second).empty());
  EXPECT_EQ(losses(second, c, 3, 6), std::vector<double>(want.begin() + 3, want.end()));
  EXPECT_EQ(masters(second), masters(straight));
  EXPECT_EQ(second.quant().history(), straight.quant().history());
  EXPECT_EQ(second.quant().totals().size(), straight.quant().totals().size());
}

INSTANTIATE_TEST_SUITE_P(Recipes, Resume, testing::ValuesIn(all_recipes()), [](const auto& test_case) { return test_case.param; });

using Checkpointing = Resume;

TEST_F(Checkpointing, AnotherRecipeStartsItsHistoryAnewAndSaysSo) {
  const RunConfig bf16 = small_config("bf16"), delayed = small_config("delayed");
  Engine from(bf16);
  losses(from, bf16, 0, 2);
  RunState state;
  state.step = 2;
  const Checkpoint saved = Checkpoint::open(save_run(dir_, 0, from, state, to_json(bf16)));
  Engine to(delayed);
  const auto notes = restore_run(saved, to);
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes[0].find("start anew"), std::string::npos);
  EXPECT_EQ(masters(to), masters(from));
}

TEST_F(Checkpointing, HistoryOfAnotherLengthStartsAnewAndSaysSo) {
  RunConfig c = small_config("delayed");
  Engine from(c);
  losses(from, c, 0, 2);
  RunState state;
  state.step = 2;
  const Checkpoint saved = Checkpoint::open(save_run(dir_, 0, from, state, to_json(c)));
  c.precision.amax_history_len = 5;
  Engine to(c);
  const auto notes = restore_run(saved, to);
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes[0].find("start anew"), std::string::npos);
  EXPECT_EQ(to.quant().history_length(), 5);
}

TEST_F(Checkpointing, PaddedRowsAreNotSaved) {
  const RunConfig c = small_config("bf16");
  Engine e(c);
  RunState state;
  state.step = 1;
  const Checkpoint saved = Checkpoint::open(save_run(dir_, 0, e, state, to_json(c)));
  for (const auto& t : saved.list()) {
    if (t.name != "lm_head.weight") continue;
    EXPECT_EQ(t.shape[0], 61);
  }
}

TEST_F(Checkpointing, AnotherModelIsRefusedByName) {
  RunConfig c = small_config("bf16");
  Engine e(c);
  RunState state;
  state.step = 1;
  const Checkpoint saved = Checkpoint::open(save_run(dir_, 0, e, state, to_json(c)));
  c.model.intermediate_size = 192;
  Engine other(c);
  try {
    restore_run(saved, other);
    FAIL() << "loaded a model of another size";
  } catch (const Error& error) {
    EXPECT_EQ(error.code, ExitCode::checkpoint);
    EXPECT_NE(std::string(error.what()).find("mlp.gate_proj.weight"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace octet::test
