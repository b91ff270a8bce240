#include "checkpoint/run_dir.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>

#include <array>

#include "unit/checkpoint/support.h"

namespace octet {
namespace {

using namespace test;

// A child that opens a run directory and holds it until killed.
class Holder {
 public:
  explicit Holder(const fs::path& run) {
    std::array<int, 2> ready{};
    EXPECT_EQ(::pipe(ready.data()), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      try {
        const RunDir held = RunDir::open(run, Resume::automatic);
        const ssize_t told = ::write(ready[1], "y", 1);
        while (told == 1) ::pause();
      } catch (const std::exception& e) {
        ::dprintf(2, "holder: %s\n", e.what());
      }
      ::_exit(1);
    }
    ::close(ready[1]);
    char c = 0;
    EXPECT_EQ(::read(ready[0], &c, 1), 1);
    ::close(ready[0]);
  }
  ~Holder() { kill(); }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
};

TEST(RunDir, StartsInANewDirectory) {
  const TempDir dir;
  const fs::path path = dir.path() / "a" / "b";
  for (Resume mode : {Resume::never, Resume::automatic}) {
    fs::remove_all(dir.path() / "a");
    const auto run = RunDir::open(path, mode);
    EXPECT_TRUE(run.fresh());
    EXPECT_EQ(run.checkpoints_dir(), path / "checkpoints");
    EXPECT_EQ(listing(path), (std::vector<std::string>{".lock", "checkpoints"}));
  }
  fs::remove_all(path);
  fs::create_directories(path);
  EXPECT_TRUE(RunDir::open(path, Resume::never).fresh());  // empty is as good as absent
}

TEST(RunDir, NeverRefusesAnythingInTheDirectory) {
  for (const char* name : {"x", ".hidden", ".lock", "checkpoints"}) {
    const TempDir dir;
    spill(dir.path() / name, "");
    const auto line = error_of(ExitCode::config, [&] { RunDir::open(dir.path(), Resume::never); });
    expect_contains(line, "not empty");
    expect_contains(line, dir.path().string());
    EXPECT_EQ(listing(dir.path()), std::vector<std::string>{name});
    EXPECT_EQ(slurp(dir.path() / name), "");
  }
}

TEST(RunDir, ResumesWhereACheckpointIs) {
  const TempDir dir;
  const fs::path path = dir.path() / "run";
  expect_contains(error_of(ExitCode::checkpoint, [&] { RunDir::open(path, Resume::must); }), "no such run directory");
  EXPECT_FALSE(fs::exists(path));
  fs::create_directory(path);
  spill(path / "log.txt", "x");
  expect_contains(error_of(ExitCode::checkpoint, [&] { RunDir::open(path, Resume::must); }), "no checkpoint to resume from");
  EXPECT_EQ(listing(path), std::vector<std::string>{"log.txt"});
  // Somebody's directory, not a run's: nothing may be written in it.
  expect_contains(error_of(ExitCode::config, [&] { RunDir::open(path, Resume::automatic); }), "it is no run directory");
  EXPECT_EQ(listing(path), std::vector<std::string>{"log.txt"});
  spill(path / ".lock", "pid 1 host gone\n");  // what a run leaves that ended before its first checkpoint
  EXPECT_TRUE(RunDir::open(path, Resume::automatic).fresh());
  save_small(path / "checkpoints", 3, 3);
  EXPECT_FALSE(RunDir::open(path, Resume::automatic).fresh());
  EXPECT_FALSE(RunDir::open(path, Resume::must).fresh());
  error_of(ExitCode::config, [&] { RunDir::open(path, Resume::never); });
  // Damaged ones count too: such a run must not start afresh over them.
  fs::remove(path / "checkpoints" / "step_0000000003" / "manifest.json");
  EXPECT_FALSE(RunDir::open(path, Resume::automatic).fresh());
}

TEST(RunDir, IsLockedByOneProcessUntilItDies) {
  const TempDir dir;
  const fs::path path = dir.path() / "run";
  Holder holder(path);
  const auto before = slurp(path / ".lock");
  for (Resume mode : {Resume::never, Resume::automatic, Resume::must}) {
    const auto line = error_of(ExitCode::config, [&] { RunDir::open(path, mode); });
    expect_contains(line, "locked by pid " + std::to_string(holder.pid()) + " host ");
  }
  EXPECT_EQ(slurp(path / ".lock"), before);
  holder.kill();  // SIGKILL: no handler could have released it
  const auto run = RunDir::open(path, Resume::automatic);
  expect_contains(slurp(path / ".lock"), "pid " + std::to_string(::getpid()) + " ");
  // And within a process, between two owners.
  error_of(ExitCode::config, [&] { RunDir::open(path, Resume::automatic); });
}

TEST(RunDir, LockEndsWithTheObjectAndMovesWithIt) {
  const TempDir dir;
  {
    RunDir first = RunDir::open(dir.path(), Resume::never);
    const RunDir second = std::move(first);
    error_of(ExitCode::config, [&] { RunDir::open(dir.path(), Resume::automatic); });
  }
  EXPECT_TRUE(RunDir::open(dir.path(), Resume::automatic).fresh());
}

TEST(RunDir, ManyProcessesOneWinner) {
  const TempDir dir;
  const fs::path path = dir.path() / "run";
  std::array<int, 2> gate{}, result{};
  ASSERT_EQ(::pipe(gate.data()), 0);
  ASSERT_EQ(::pipe(result.data()), 0);
  std::vector<pid_t> children;
  for (int i = 0; i < 8; ++i) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::close(gate[1]);
      char c = 0;
      char outcome = 'x';
      const ssize_t opened = ::read(gate[0], &c, 1);  // 0 bytes: the gate was closed, all go
      try {
        const RunDir run = RunDir::open(path, Resume::automatic);
        outcome = opened == 0 ? 'w' : 'x';
        if (::write(result[1], &outcome, 1) == 1) ::pause();
      } catch (const Error& e) {
        outcome = e.code == ExitCode::config ? 'l' : 'x';
        if (::write(result[1], &outcome, 1) != 1) ::_exit(2);
      } catch (...) {
        if (::write(result[1], &outcome, 1) != 1) ::_exit(2);
      }
      ::_exit(0);
    }
    children.push_back(pid);
  }
  ::close(gate[0]);
  ::close(gate[1]);
  std::string outcomes;
  for (int i = 0; i < 8; ++i) {
    char c = 0;
    ASSERT_EQ(::read(result[0], &c, 1), 1);
    outcomes += c;
  }
  for (pid_t pid : children) {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }
  ::close(result[0]);
  ::close(result[1]);
  std::sort(outcomes.begin(), outcomes.end());
  EXPECT_EQ(outcomes, "lllllllw");
}

TEST(RunDir, HostileLockFileIsPrintedSafely) {
  const TempDir dir;
  const fs::path lock = dir.path() / ".lock";
  spill(lock, "\x1b[31m" + std::string(10000, 'x') + "\nsecond");
  const int fd = ::open(lock.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(::flock(fd, LOCK_EX), 0);
  const auto line = error_of(ExitCode::config, [&] { RunDir::open(dir.path(), Resume::automatic); });
  expect_contains(line, "locked by ?[31mxxx");
  EXPECT_EQ(line.find('\x1b'), std::string::npos);
  EXPECT_LT(line.size(), 600u);
  ::close(fd);
}

TEST(RunDir, ImpossiblePlacesAreNamed) {
  const TempDir dir;
  spill(dir.path() / "file", "x");
  expect_contains(error_of(ExitCode::config, [&] { RunDir::open(dir.path() / "file", Resume::automatic); }), "not a directory");
  const auto line = error_of(ExitCode::config, [&] { RunDir::open(dir.path() / "file" / "run", Resume::automatic); });
  expect_contains(line, (dir.path() / "file" / "run").string());
  expect_contains(line, "Not a directory");
  EXPECT_EQ(slurp(dir.path() / "file"), "x");
}

TEST(RunDir, ResumeModeNames) {
  EXPECT_EQ(resume_mode("auto"), Resume::automatic);
  EXPECT_EQ(resume_mode("never"), Resume::never);
  EXPECT_EQ(resume_mode("must"), Resume::must);
  expect_contains(error_of(ExitCode::config, [] { resume_mode("yes"); }), "\"yes\" is not one of auto, never, must");
}

}  // namespace
}  // namespace octet
