#include "core/file_io.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <system_error>

namespace octet {
namespace {

// One call never moves more: Linux caps a transfer at 2 GiB - 4 KiB and a smaller piece is interrupted sooner.
constexpr size_t max_transfer_bytes = size_t{64} << 20;

bool no_room(int error) { return error == ENOSPC || error == EDQUOT || error == EFBIG; }

std::string remedy(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT: return "free disk space or quota there, or write to another file system";
    case EFBIG: return "raise the file size limit (ulimit -f) or write to a file system that takes larger files";
    case EIO: return "check the disk; the system log says more";
    case EMFILE:
    case ENFILE: return "raise the limit of open files (ulimit -n)";
    default: return "check the path, its permissions and its mount";
  }
}

}  // namespace

void throw_io_error(std::string_view action, const std::filesystem::path& path, int error, ExitCode code, std::string fix) {
  throw Error(no_room(error) ? ExitCode::checkpoint : code, fmt::format("cannot {}: {}", action, std::generic_category().message(error)),
              path.string(), fix.empty() ? remedy(error) : std::move(fix));
}

File::~File() {
  if (fd_ >= 0) ::close(fd_);
}

File& File::operator=(File&& o) noexcept {
  std::swap(fd_, o.fd_);
  std::swap(path_, o.path_);
  std::swap(code_, o.code_);
  return *this;
}

File File::open_for_read(const std::filesystem::path& path, ExitCode code, const std::string& fix) {
  // Non-blocking, so that a pipe is refused below instead of waiting for a writer.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) throw_io_error("open", path, errno, code, fix);
  File file(fd, path, code);
  struct stat status {};
  if (::fstat(fd, &status) != 0) throw_io_error("inspect", path, errno, code, fix);
  if (!S_ISREG(status.st_mode)) throw Error(code, "not a regular file", path.string(), fix);
  return file;
}

File File::create(const std::filesystem::path& path, ExitCode code) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0) throw_io_error("create", path, errno, code);
  return File(fd, path, code);
}

uint64_t File::size_bytes() const {
  struct stat status {};
  if (::fstat(fd_, &status) != 0) throw_io_error("inspect", path_, errno, code_);
  return static_cast<uint64_t>(status.st_size);
}

void File::read_exact(void* out, size_t bytes, uint64_t offset) const {
  char* at = static_cast<char*>(out);
  while (bytes > 0) {
    const ssize_t n = ::pread(fd_, at, std::min(bytes, max_transfer_bytes), static_cast<off_t>(offset));
    if (n < 0) {
      const int error = errno;
      if (error == EINTR) continue;
      throw_io_error(fmt::format("read at byte {}", offset), path_, error, code_);
    }
    if (n == 0) {
      throw Error(code_, fmt::format("ends at byte {}, {} bytes early", offset, bytes), path_.string(),
                  "the file was cut while it was in use; restore it or make it again");
    }
    at += n;
    bytes -= static_cast<size_t>(n);
    offset += static_cast<uint64_t>(n);
  }
}

size_t File::read_some(void* out, size_t bytes) const {
  for (;;) {
    const ssize_t n = ::read(fd_, out, std::min(bytes, max_transfer_bytes));
    if (n >= 0) return static_cast<size_t>(n);
    if (errno != EINTR) throw_io_error("read", path_, errno, code_);
  }
}

void File::write_all(const void* data, size_t bytes) {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::write(fd_, at, std::min(bytes, max_transfer_bytes));
    if (n < 0) {
      if (errno == EINTR) continue;
      throw_io_error("write", path_, errno, code_);
    }
    at += n;
    bytes -= static_cast<size_t>(n);
  }
}

void File::sync() {
  if (::fsync(fd_) != 0) throw_io_error("flush to disk", path_, errno, code_);
}

void File::close() {
  if (::close(std::exchange(fd_, -1)) != 0) throw_io_error("close", path_, errno, code_);
}

void sync_parent_directory(const std::filesystem::path& path, ExitCode code) {
  const auto parent = path.parent_path();
  const auto directory = parent.empty() ? std::filesystem::path(".") : parent;
  const int fd = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) throw_io_error("open", directory, errno, code);
  const File opened(fd, directory, code);
  // EINVAL: the file system has no notion of flushing a directory (some network file systems); it orders renames itself.
  if (::fsync(fd) != 0 && errno != EINVAL) throw_io_error("flush to disk", directory, errno, code);
}

void rename_path(const std::filesystem::path& from, const std::filesystem::path& to, ExitCode code) {
  if (::rename(from.c_str(), to.c_str()) == 0) return;
  const int error = errno;
  throw_io_error(fmt::format("rename to {}", to.filename().string()), from, error, code);
}

void remove_tree(const std::filesystem::path& path, ExitCode code) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
  if (error) throw_io_error("remove", path, error.value(), code);
}

std::string read_file(const std::filesystem::path& path, uint64_t max_bytes, ExitCode code) {
  const File file = File::open_for_read(path, code);
  const uint64_t size = file.size_bytes();
  if (size > max_bytes) throw Error(code, fmt::format("file has {} bytes, at most {} are allowed", size, max_bytes), path.string());
  std::string content(size, '\0');
  file.read_exact(content.data(), content.size(), 0);
  return content;
}

void make_parent_directory(const std::filesystem::path& path, ExitCode code) {
  if (!path.has_parent_path()) return;
  std::error_code failed;
  std::filesystem::create_directories(path.parent_path(), failed);
  if (failed) throw Error(code, "cannot make the directory: " + failed.message(), path.parent_path().string(), "check the path and its permissions");
}

void write_file_atomic(const std::filesystem::path& given, std::string_view content, ExitCode code) {
  // A rename would replace a link by a file, and a device or pipe too, which only the superuser notices too late.
  std::error_code unresolved;
  const bool link = std::filesystem::is_symlink(given, unresolved);
  const std::filesystem::path path = link ? std::filesystem::weakly_canonical(given, unresolved) : given;
  std::error_code absent;
  const auto status = std::filesystem::status(path, absent);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    throw Error(ExitCode::config, "is no regular file, and only files can be replaced as a whole", given.string(), "name a file");
  }
  std::filesystem::path temporary = path;
  temporary += fmt::format(".tmp.{}", ::getpid());
  File file = File::create(temporary, code);
  try {
    file.write_all(content.data(), content.size());
    file.sync();
    file.close();
    rename_path(temporary, path, code);
  } catch (const Error&) {
    ::unlink(temporary.c_str());
    throw;
  }
  sync_parent_directory(path, code);
}

void remove_leftovers(const std::filesystem::path& path) {
  const auto parent = path.parent_path();
  const std::string start = path.filename().string() + ".tmp.";
  std::error_code error;
  for (std::filesystem::directory_iterator it(parent.empty() ? std::filesystem::path(".") : parent, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.rfind(start, 0) != 0) continue;
    pid_t pid = 0;
    const char *first = name.data() + start.size(), *last = name.data() + name.size();
    const auto [at, bad] = std::from_chars(first, last, pid);
    if (bad == std::errc() && at == last && pid > 0 && ::kill(pid, 0) != 0 && errno == ESRCH) ::unlink(it->path().c_str());
  }
}

}  // namespace octet
