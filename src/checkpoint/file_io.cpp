#include "checkpoint/file_io.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "core/error.h"

namespace octet {
namespace {

// One call never moves more: Linux caps a transfer at 2 GiB - 4 KiB and a smaller piece is interrupted sooner.
constexpr size_t max_transfer_bytes = size_t{64} << 20;

std::string remedy(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT: return "free disk space or quota there, or lower ckpt.keep_last";
    case EFBIG: return "raise the file size limit (ulimit -f) or use a file system that takes larger files";
    case EACCES:
    case EPERM:
    case EROFS: return "check the permissions of the directory and its mount";
    case EIO: return "check the disk; the system log says more";
    case EMFILE:
    case ENFILE: return "raise the limit of open files (ulimit -n)";
    default: return {};
  }
}

std::filesystem::path parent_of(const std::filesystem::path& path) {
  const auto parent = path.parent_path();
  return parent.empty() ? std::filesystem::path(".") : parent;
}

}  // namespace

Fd::~Fd() {
  if (fd_ >= 0) ::close(fd_);
}

void throw_io_error(std::string_view action, const std::filesystem::path& path, int error) {
  throw Error(ExitCode::checkpoint, fmt::format("cannot {}: {}", action, std::generic_category().message(error)), path.string(), remedy(error));
}

Fd open_for_read(const std::filesystem::path& path, uint64_t& size_bytes) {
  Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) throw_io_error("open", path, errno);
  struct stat st {};
  if (::fstat(fd.get(), &st) != 0) throw_io_error("inspect", path, errno);
  if (!S_ISREG(st.st_mode)) throw Error(ExitCode::checkpoint, "not a regular file", path.string());
  size_bytes = static_cast<uint64_t>(st.st_size);
  return fd;
}

Fd open_for_write(const std::filesystem::path& path) {
  Fd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!fd) throw_io_error("create", path, errno);
  return fd;
}

void write_all(int fd, const void* data, size_t bytes, const std::filesystem::path& path) {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::write(fd, at, std::min(bytes, max_transfer_bytes));
    if (n < 0) {
      if (errno == EINTR) continue;
      throw_io_error("write", path, errno);
    }
    at += n;
    bytes -= static_cast<size_t>(n);
  }
}

void read_exact(int fd, void* out, size_t bytes, uint64_t offset, const std::filesystem::path& path) {
  char* at = static_cast<char*>(out);
  while (bytes > 0) {
    const ssize_t n = ::pread(fd, at, std::min(bytes, max_transfer_bytes), static_cast<off_t>(offset));
    if (n < 0) {
      if (errno == EINTR) continue;
      throw_io_error("read", path, errno);
    }
    if (n == 0) throw Error(ExitCode::checkpoint, fmt::format("file ends at byte {}, {} more expected", offset, bytes), path.string());
    at += n;
    bytes -= static_cast<size_t>(n);
    offset += static_cast<uint64_t>(n);
  }
}

void sync_and_close(Fd fd, const std::filesystem::path& path) {
  if (::fsync(fd.get()) != 0) throw_io_error("flush to disk", path, errno);
  if (::close(fd.release()) != 0) throw_io_error("close", path, errno);
}

void sync_directory(const std::filesystem::path& directory) {
  Fd fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) throw_io_error("open", directory, errno);
  // EINVAL: the file system has no notion of flushing a directory (some network file systems); it orders renames itself.
  if (::fsync(fd.get()) != 0 && errno != EINVAL) throw_io_error("flush to disk", directory, errno);
}

void rename_path(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) throw_io_error(fmt::format("rename to {}", to.filename().string()), from, errno);
}

void remove_tree(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
  if (error) throw_io_error("remove", path, error.value());
}

std::string read_file(const std::filesystem::path& path, uint64_t max_bytes) {
  uint64_t size = 0;
  const Fd fd = open_for_read(path, size);
  if (size > max_bytes) throw Error(ExitCode::checkpoint, fmt::format("file has {} bytes, at most {} are allowed", size, max_bytes), path.string());
  std::string content(size, '\0');
  read_exact(fd.get(), content.data(), content.size(), 0, path);
  return content;
}

void write_file_atomic(const std::filesystem::path& path, std::string_view content) {
  std::filesystem::path temporary = path;
  temporary += fmt::format(".tmp.{}", ::getpid());
  try {
    Fd fd = open_for_write(temporary);
    write_all(fd.get(), content.data(), content.size(), temporary);
    sync_and_close(std::move(fd), temporary);
    rename_path(temporary, path);
  } catch (const Error&) {
    ::unlink(temporary.c_str());
    throw;
  }
  sync_directory(parent_of(path));
}

}  // namespace octet
