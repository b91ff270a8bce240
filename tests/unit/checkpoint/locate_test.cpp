#include "unit/checkpoint/support.h"

namespace octet {
namespace {

using namespace test;

class Locate : public ::testing::Test {
 protected:
  void SetUp() override {
    for (int64_t step : {10, 20, 30}) save_small(dir(), step, static_cast<float>(step));
  }
  const fs::path& dir() const { return temp_.path(); }
  fs::path of(int64_t step) const { return dir() / step_directory_name(step); }
  fs::path latest() {
    warnings_.clear();
    const auto found = latest_checkpoint(dir(), warnings_);
    return found ? *found : fs::path();
  }
  std::string warnings() const {
    std::string all;
    for (const auto& w : warnings_) all += w + "\n";
    return all;
  }
  void damage(int64_t step) {
    const fs::path shard = of(step) / "optimizer-00001.safetensors";
    flip_bit(shard, fs::file_size(shard) - 7, 3);
  }

  std::vector<std::string> warnings_;

 private:
  TempDir temp_;
};

TEST_F(Locate, PlainCaseIsSilent) {
  EXPECT_EQ(latest(), of(30));
  EXPECT_TRUE(warnings_.empty()) << warnings();
}

TEST_F(Locate, LatestRulesOverNewerSteps) {
  spill(dir() / "LATEST", "step_0000000020");  // by hand, without a line end
  EXPECT_EQ(latest(), of(20));
  expect_contains(warnings(), "step_0000000030 is later");
}

TEST_F(Locate, UnusableLatestFilesFallBackToTheNewest) {
  const std::pair<std::string, const char*> cases[] = {{"", "not the name"},
                                                       {"\n", "not the name"},
                                                       {"step_30\n", "not the name"},
                                                       {"../../etc/passwd", "not the name"},
                                                       {"step_0000000030.replaced\n", "not the name"},
                                                       {std::string(300, 'x'), "300 bytes"},
                                                       {std::string("step_0000000030\0x", 17), "not the name"},
                                                       {"step_0000000099\n", "instead of step_0000000099"}};
  for (const auto& [content, message] : cases) {
    spill(dir() / "LATEST", content);
    EXPECT_EQ(latest(), of(30)) << content;
    expect_contains(warnings(), message);
  }
  fs::remove(dir() / "LATEST");
  EXPECT_EQ(latest(), of(30));
  expect_contains(warnings(), "LATEST: missing");
  fs::create_directory(dir() / "LATEST");
  EXPECT_EQ(latest(), of(30));
  expect_contains(warnings(), "not a regular file");
}

TEST_F(Locate, FlippedBitFallsBackToThePrevious) {
  damage(30);
  EXPECT_EQ(latest(), of(20));
  expect_contains(warnings(), "exp_avg/model.layers.0.mlp.up_proj.weight");
  expect_contains(warnings(), "is damaged");
  expect_contains(warnings(), "falling back to step_0000000020 instead of step_0000000030");
  EXPECT_EQ(fill_of(of(20)), 20.0f);
  warnings_.clear();
  EXPECT_EQ(*latest_checkpoint(dir(), warnings_, Verify::structure), of(30));  // the cheap check does not read tensors
  damage(20);
  EXPECT_EQ(latest(), of(10));
}

// Before LATEST's step is safer than after it: later steps may belong to a branch that was given up.
TEST_F(Locate, FallBackGoesDownFirst) {
  spill(dir() / "LATEST", "step_0000000020\n");
  damage(20);
  EXPECT_EQ(latest(), of(10));
  damage(10);
  EXPECT_EQ(latest(), of(30));
}

TEST_F(Locate, NothingUsableIsAnErrorNotAFreshStart) {
  for (int64_t step : {10, 20, 30}) fs::remove(of(step) / "manifest.json");
  expect_contains(error_of(ExitCode::checkpoint, [&] { latest(); }), "none of 3 checkpoints is usable");
  for (int64_t step : {10, 20, 30}) fs::remove_all(of(step));
  expect_contains(error_of(ExitCode::checkpoint, [&] { latest(); }), "LATEST is there, but no checkpoint");
  fs::remove(dir() / "LATEST");
  EXPECT_EQ(latest(), fs::path());
  EXPECT_TRUE(warnings_.empty());
}

TEST_F(Locate, DirectoryUnderAnotherStepsNameIsNotUsed) {
  fs::rename(of(30), of(40));
  spill(dir() / "LATEST", "step_0000000040\n");
  EXPECT_EQ(latest(), of(20));
  expect_contains(warnings(), "holds step 30");
}

TEST_F(Locate, ReplacedSaveServesWhenItsSuccessorIsMissing) {
  fs::rename(of(30), dir() / "step_0000000030.replaced");
  EXPECT_EQ(latest(), dir() / "step_0000000030.replaced");
  expect_contains(warnings(), "falling back to step_0000000030.replaced");
}

TEST_F(Locate, ResolveTakesCheckpointCheckpointsOrRun) {
  const TempDir run;
  fs::create_directory_symlink(dir(), run.path() / "checkpoints");
  std::vector<std::string> warnings;
  EXPECT_EQ(resolve_checkpoint(of(10), warnings), of(10));
  EXPECT_EQ(resolve_checkpoint(dir(), warnings), of(30));
  EXPECT_EQ(resolve_checkpoint(run.path(), warnings), run.path() / "checkpoints" / "step_0000000030");
  EXPECT_TRUE(warnings.empty());
  const TempDir empty;
  expect_contains(error_of(ExitCode::checkpoint, [&] { resolve_checkpoint(empty.path(), warnings); }), "holds no checkpoint");
  expect_contains(error_of(ExitCode::checkpoint, [&] { resolve_checkpoint(empty.path() / "absent", warnings); }), "no such directory");
}

}  // namespace
}  // namespace octet
