// The promise of the commit protocol: whatever happens during a save, a sound checkpoint can be loaded afterwards.
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>

#include "unit/checkpoint/support.h"

namespace octet {
namespace {

using namespace test;

// Runs the save in a child that kills itself with SIGKILL at the n-th point of the protocol; false when the save came to its end.
bool killed_at(int n, const std::function<void(std::function<void(SavePhase)>)>& save) {
  const int status = in_child([&] {
    int left = n;
    save([&](SavePhase) {
      if (left-- == 0) ::raise(SIGKILL);
    });
    return 0;
  });
  if (WIFSIGNALED(status)) {
    EXPECT_EQ(WTERMSIG(status), SIGKILL);
    return true;
  }
  EXPECT_EQ(WEXITSTATUS(status), 0);
  return false;
}

float fill_of_latest(const fs::path& dir) {
  std::vector<std::string> warnings;
  const auto latest = latest_checkpoint(dir, warnings);
  return latest ? fill_of(*latest) : -1;
}

void expect_no_leftovers(const fs::path& dir) {
  for (const auto& name : listing(dir)) EXPECT_EQ(name.find(".tmp."), std::string::npos) << name;
}

TEST(Crash, FirstSave) {
  int n = 0;
  for (bool killed = true; killed; ++n) {
    const TempDir dir;
    killed = killed_at(n, [&](auto hook) { save_small(dir.path(), 1, 1, 2, hook); });
    const float fill = fill_of_latest(dir.path());
    EXPECT_TRUE(fill == 1 || (killed && fill == -1)) << "point " << n;
    save_small(dir.path(), 2, 2, 2);
    EXPECT_EQ(fill_of_latest(dir.path()), 2);
    expect_no_leftovers(dir.path());
  }
  EXPECT_EQ(n, 9);  // temporary, three shards, manifest, commit, LATEST, end, and one run that is not killed
}

TEST(Crash, LaterSaveWithRetention) {
  int n = 0;
  for (bool killed = true; killed; ++n) {
    const TempDir dir;
    for (int64_t step : {1, 2}) save_small(dir.path(), step, static_cast<float>(step), 2);
    killed = killed_at(n, [&](auto hook) { save_small(dir.path(), 3, 3, 1, hook); });
    const float fill = fill_of_latest(dir.path());
    EXPECT_TRUE(fill == 3 || (killed && fill == 2)) << "point " << n << " fill " << fill;
    save_small(dir.path(), 4, 4, 2);
    EXPECT_EQ(fill_of_latest(dir.path()), 4);
    EXPECT_EQ(listing(dir.path()), (std::vector<std::string>{"LATEST", n < 5 ? "step_0000000002" : "step_0000000003", "step_0000000004"}))
        << "point " << n;
  }
  EXPECT_EQ(n, 11);  // as above and two deletions
}

TEST(Crash, SavingTheSameStepAgain) {
  int n = 0;
  for (bool killed = true; killed; ++n) {
    const TempDir dir;
    save_small(dir.path(), 5, 1);  // the only checkpoint: nothing older to fall back to
    killed = killed_at(n, [&](auto hook) { save_small(dir.path(), 5, 2, 1, hook); });
    const float fill = fill_of_latest(dir.path());
    EXPECT_TRUE(fill == 2 || (killed && fill == 1)) << "point " << n << " fill " << fill;
    // The leftovers of the first attempt do not disturb a second and a third.
    killed_at(n, [&](auto hook) { save_small(dir.path(), 5, 3, 1, hook); });
    EXPECT_GE(fill_of_latest(dir.path()), 1) << "point " << n;
    save_small(dir.path(), 5, 4, 1);
    EXPECT_EQ(fill_of_latest(dir.path()), 4);
    EXPECT_EQ(listing(dir.path()), (std::vector<std::string>{"LATEST", "step_0000000005"})) << "point " << n;
  }
  EXPECT_EQ(n, 11);  // as the first save, the previous one moved away and deleted
}

TEST(Crash, AbandonedDirectoryOfALiveProcessIsNotTouched) {
  const TempDir dir;
  const fs::path of_init = dir.path() / "step_0000000001.tmp.1", of_nobody = dir.path() / "step_0000000001.tmp.999999999",
                 odd = dir.path() / "step_0000000001.tmp.12x";
  for (const auto& p : {of_init, of_nobody, odd}) fs::create_directory(p);
  save_small(dir.path(), 2, 2);
  EXPECT_TRUE(fs::exists(of_init));  // process 1 always runs
  EXPECT_TRUE(fs::exists(odd));
  EXPECT_FALSE(fs::exists(of_nobody));
}

// /dev/full gives a genuine ENOSPC: the shard's name is made a link to it just before it is written.
TEST(FullDisk, FailedWriteKeepsOlderCheckpoints) {
  for (const char* file : {"model-00001.safetensors", "optimizer-00001.safetensors", "manifest.json.tmp."}) {
    SCOPED_TRACE(file);
    const TempDir dir;
    save_small(dir.path(), 1, 1);
    const auto before = listing(dir.path());
    const std::string pid = std::to_string(::getpid()), target = std::string(file).ends_with('.') ? file + pid : file;
    const auto line = error_of(ExitCode::checkpoint, [&] {
      save_small(dir.path(), 2, 2, 1, [&](SavePhase phase) {
        if (phase == SavePhase::temporary_made) fs::create_symlink("/dev/full", dir.path() / ("step_0000000002.tmp." + pid) / target);
      });
    });
    expect_contains(line, target);
    expect_contains(line, "No space left on device");
    EXPECT_EQ(listing(dir.path()), before);
    EXPECT_EQ(fill_of_latest(dir.path()), 1);
    EXPECT_TRUE(fs::is_character_file("/dev/full"));
  }
}

TEST(FullDisk, FileSizeLimit) {
  const TempDir dir;
  const int status = in_child([&] {
    save_small(dir.path(), 1, 1);
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{4096, 4096};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return 2;
    const std::vector<float> large(4096, 1.0f);
    try {
      save_checkpoint(dir.path(), {.step = 2, .keep_last = 1}, {{"model", "w", Dtype::f32, {4096}, large.data()}}, nullptr);
    } catch (const Error& e) {
      const std::string line = e.what();
      return e.code == ExitCode::checkpoint && line.find("File too large") != std::string::npos &&
                     line.find("model-00001.safetensors") != std::string::npos
                 ? 0
                 : 3;
    }
    return 4;
  });
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(listing(dir.path()), (std::vector<std::string>{"LATEST", "step_0000000001"}));
  EXPECT_EQ(fill_of_latest(dir.path()), 1);
}

TEST(FullDisk, SpaceIsCheckedBeforeAnythingIsWritten) {
  const TempDir dir;
  save_small(dir.path(), 1, 1);
  bool started = false;
  SaveOptions options;
  options.step = 2;
  options.after_phase = [&](SavePhase) { started = true; };
  const float unused = 0;
  const auto line = error_of(ExitCode::checkpoint, [&] {
    save_checkpoint(dir.path(), options, {{"model", "w", Dtype::f32, {int64_t{1} << 30, int64_t{1} << 28}, &unused}}, nullptr);
  });
  expect_contains(line, "1152921504");  // 2^60 bytes and the rest
  expect_contains(line, "available");
  expect_contains(line, dir.path().string());
  EXPECT_FALSE(started);
  EXPECT_EQ(listing(dir.path()), (std::vector<std::string>{"LATEST", "step_0000000001"}));
}

TEST(FullDisk, UnwritableDirectoryIsNamed) {
  const TempDir dir;
  spill(dir.path() / "file", "x");
  const auto line = error_of(ExitCode::checkpoint, [&] { save_small(dir.path() / "file" / "checkpoints", 1, 1); });
  expect_contains(line, (dir.path() / "file" / "checkpoints").string());
  expect_contains(line, "Not a directory");
}

}  // namespace
}  // namespace octet
