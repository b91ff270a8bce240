#include "data/file_io.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "core/error.h"

namespace octet::data {
namespace {
constexpr size_t buffer_bytes = size_t{1} << 20;

std::string reason() { return std::strerror(errno); }

[[noreturn]] void throw_write_error(const std::string& path) {
  if (errno == ENOSPC || errno == EDQUOT) {
    throw Error(ExitCode::checkpoint, fmt::format("cannot write: {}", reason()), path, "free disk space or write to another file system");
  }
  if (errno == EFBIG) {
    throw Error(ExitCode::checkpoint, fmt::format("cannot write: {}", reason()), path,
        "raise the file size limit (ulimit -f) or write to another file system");
  }
  throw Error(ExitCode::data, fmt::format("cannot write: {}", reason()), path, "check the path and its permissions");
}
}  // namespace

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  if (this != &other) {
    close();
    fd_ = other.release();
  }
  return *this;
}

void FileDescriptor::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

int FileDescriptor::release() { return std::exchange(fd_, -1); }

FileDescriptor open_for_reading(const std::string& path, const std::string& fix) {
  // Non-blocking, so that a FIFO is refused below instead of waiting for a writer.
  FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) throw Error(ExitCode::data, fmt::format("cannot open: {}", reason()), path, fix);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) throw Error(ExitCode::data, fmt::format("cannot stat: {}", reason()), path, fix);
  if (!S_ISREG(status.st_mode)) throw Error(ExitCode::data, "not a regular file", path, fix);
  return file;
}

int64_t file_size(const FileDescriptor& file, const std::string& path) {
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) throw Error(ExitCode::data, fmt::format("cannot stat: {}", reason()), path, "check the file system");
  return status.st_size;
}

void read_exactly(const FileDescriptor& file, const std::string& path, int64_t offset, void* out, size_t bytes) {
  char* to = static_cast<char*>(out);
  while (bytes > 0) {
    const ssize_t got = ::pread(file.get(), to, bytes, offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw Error(ExitCode::data, fmt::format("cannot read at byte {}: {}", offset, reason()), path, "check the file system");
    if (got == 0) {
      throw Error(ExitCode::data, fmt::format("ends at byte {}, {} bytes early", offset, bytes), path,
          "the file was cut since it was opened; build or copy it again");
    }
    to += got;
    offset += got;
    bytes -= static_cast<size_t>(got);
  }
}

size_t read_some(const FileDescriptor& file, const std::string& path, void* out, size_t bytes) {
  for (;;) {
    const ssize_t got = ::read(file.get(), out, bytes);
    if (got >= 0) return static_cast<size_t>(got);
    if (errno != EINTR) throw Error(ExitCode::data, fmt::format("cannot read: {}", reason()), path, "check the file system");
  }
}

void write_exactly(const FileDescriptor& file, const std::string& path, const void* from, size_t bytes) {
  const char* at = static_cast<const char*>(from);
  while (bytes > 0) {
    const ssize_t put = ::write(file.get(), at, bytes);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) throw_write_error(path);
    at += put;
    bytes -= static_cast<size_t>(put);
  }
}

void sync_file(const FileDescriptor& file, const std::string& path) {
  if (::fsync(file.get()) != 0) throw_write_error(path);
}

void sync_directory_of(const std::string& path) {
  const size_t slash = path.find_last_of('/');
  const std::string directory = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const FileDescriptor file(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (file.get() < 0) throw_write_error(directory);
  sync_file(file, directory);
}

OutputFile::OutputFile(std::string path) : path_(std::move(path)), temporary_(path_ + ".tmp") {
  refuse_existing();
  FileDescriptor file(::open(temporary_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666));
  if (file.get() < 0) throw_write_error(temporary_);
  if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    throw Error(ExitCode::data, fmt::format("cannot lock: {}", reason()), temporary_,
        "another process is writing this file; wait for it or choose another output");
  }
  // Between open and lock the other writer may have renamed or removed the name: then the locked file is not ours to cut.
  struct stat opened {}, named {};
  if (::fstat(file.get(), &opened) != 0 || ::lstat(temporary_.c_str(), &named) != 0 || opened.st_ino != named.st_ino
      || opened.st_dev != named.st_dev) {
    throw Error(ExitCode::data, "another process has just finished writing this file", path_, "choose another output");
  }
  if (!S_ISREG(opened.st_mode)) throw Error(ExitCode::data, "not a regular file", temporary_, "remove it or choose another output");
  refuse_existing();
  if (::ftruncate(file.get(), 0) != 0) throw_write_error(temporary_);
  file_ = std::move(file);
  buffer_.reserve(buffer_bytes);
}

OutputFile::~OutputFile() {
  if (!committed_ && file_.get() >= 0) ::unlink(temporary_.c_str());
}

void OutputFile::refuse_existing() const {
  struct stat status {};
  if (::lstat(path_.c_str(), &status) == 0) throw Error(ExitCode::data, "exists already and is not overwritten", path_,
      "remove it or choose another output");
}

void OutputFile::write(const void* from, size_t bytes) {
  const char* at = static_cast<const char*>(from);
  bytes_ += static_cast<int64_t>(bytes);
  while (bytes > 0) {
    const size_t take = std::min(bytes, buffer_bytes - buffer_.size());
    buffer_.append(at, take);
    at += take;
    bytes -= take;
    if (buffer_.size() == buffer_bytes) flush();
  }
}

void OutputFile::flush() {
  write_exactly(file_, temporary_, buffer_.data(), buffer_.size());
  buffer_.clear();
}

void OutputFile::sync() {
  flush();
  sync_file(file_, temporary_);
}

void OutputFile::commit() {
  refuse_existing();
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) throw_write_error(path_);
  committed_ = true;
}

void OutputFile::withdraw() {
  if (committed_) ::unlink(path_.c_str());
}

}  // namespace octet::data
