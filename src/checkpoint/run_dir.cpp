#include "checkpoint/run_dir.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>

#include "checkpoint/store.h"

namespace octet {
namespace fs = std::filesystem;
namespace {

constexpr const char* lock_file = ".lock";

[[noreturn]] void refuse(const fs::path& path, std::string what, std::string fix) {
  throw Error(ExitCode::config, std::move(what), path.string(), std::move(fix));
}

[[noreturn]] void refuse_io(std::string_view action, const fs::path& path, int error) {
  refuse(path, fmt::format("cannot {}: {}", action, std::generic_category().message(error)), "choose another --run-dir or check its permissions");
}

// What the holder wrote about itself, in printable characters.
std::string holder(int fd) {
  std::array<char, 256> text{};
  const ssize_t n = ::pread(fd, text.data(), text.size(), 0);
  std::string line(text.data(), n > 0 ? static_cast<size_t>(n) : 0);
  line.resize(std::min(line.size(), line.find('\n')));
  for (char& c : line) {
    if (c < ' ' || c > '~') c = '?';
  }
  return line.empty() ? "a process that is just starting" : line;
}

// Not open when the lock file is absent and may not be made.
File take_lock(const fs::path& run, bool create) {
  const fs::path path = run / lock_file;
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | (create ? O_CREAT : 0), 0666);
  if (fd < 0) {
    if (errno == ENOENT && !create) return {};
    refuse_io("open", path, errno);
  }
  File lock(fd, path, ExitCode::checkpoint);
  while (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) refuse_io("lock", path, errno);
    refuse(run, fmt::format("run directory is locked by {}", holder(fd)), "wait for that run to end, or choose another --run-dir");
  }
  return lock;
}

void sign_lock(File& lock) {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) throw_io_error("ask for the host name", lock.path(), errno, ExitCode::checkpoint);
  const std::string text = fmt::format("pid {} host {}\n", ::getpid(), host.data());
  if (::ftruncate(lock.fd(), 0) != 0) throw_io_error("write", lock.path(), errno, ExitCode::checkpoint);
  lock.write_all(text.data(), text.size());
}

// With `locked`, our own lock file does not count as content.
void check_policy(const fs::path& path, Resume mode, bool locked) {
  if (mode == Resume::must && !has_checkpoints(path / "checkpoints")) {
    throw Error(ExitCode::checkpoint, "no checkpoint to resume from", path.string(), "use --resume auto to start when there is none");
  }
  // Whatever a run left behind may be gone on with; a directory that never was a run's may not be written in.
  std::error_code error;
  if (mode != Resume::never && (has_checkpoints(path / "checkpoints") || fs::exists(path / lock_file, error))) return;
  for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
    if (locked && it->path().filename() == lock_file) continue;
    refuse(path, fmt::format("run directory is not empty (it holds {})", it->path().filename().string()),
           mode == Resume::never ? "use --resume auto to continue it, or choose another --run-dir"
                                 : "it is no run directory; choose another --run-dir");
  }
  if (error) refuse_io("list", path, error.value());
}

}  // namespace

Resume resume_mode(std::string_view text) {
  if (text == "auto") return Resume::automatic;
  if (text == "never") return Resume::never;
  if (text == "must") return Resume::must;
  throw Error(ExitCode::config, fmt::format("\"{}\" is not one of auto, never, must", text), "ckpt.resume", "correct the value");
}

RunDir RunDir::open(const fs::path& path, Resume mode) {
  RunDir run;
  run.path_ = path;
  std::error_code error;
  const auto status = fs::status(path, error);
  if (fs::exists(status)) {
    if (!fs::is_directory(status)) refuse(path, "is not a directory", "choose another --run-dir");
    run.lock_ = take_lock(path, false);
    check_policy(path, mode, false);
  } else {
    if (mode == Resume::must)
      throw Error(ExitCode::checkpoint, "no such run directory to resume", path.string(), "correct --run-dir, or use --resume auto");
    fs::create_directories(path, error);
    if (error) refuse_io("create directory", path, error.value());
  }
  if (!run.lock_) {
    run.lock_ = take_lock(path, true);
    // Another run may have come and gone between the check and the lock.
    check_policy(path, mode, true);
  }
  sign_lock(run.lock_);
  fs::create_directories(run.checkpoints_dir(), error);
  if (error) refuse_io("create directory", run.checkpoints_dir(), error.value());
  run.fresh_ = !has_checkpoints(run.checkpoints_dir());
  return run;
}

}  // namespace octet
