#include "data/output_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace octet::data {
namespace {
constexpr size_t buffer_bytes = size_t{1} << 20;
}  // namespace

OutputFile::OutputFile(std::string path, int64_t keep_bytes) : path_(std::move(path)), bytes_(keep_bytes) {
  const std::string temporary = path_ + ".tmp";
  refuse_existing();
  const int fd = ::open(temporary.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
  if (fd < 0) throw_io_error("write", temporary, errno, ExitCode::data);
  File file(fd, temporary, ExitCode::data);
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    throw_io_error("lock", temporary, errno, ExitCode::data, "another process is writing this file; wait for it or choose another output");
  }
  // Between open and lock the other writer may have renamed or removed the name: then the locked file is not ours to cut.
  struct stat opened {}, named {};
  if (::fstat(fd, &opened) != 0 || ::lstat(temporary.c_str(), &named) != 0 || opened.st_ino != named.st_ino || opened.st_dev != named.st_dev) {
    throw Error(ExitCode::data, "another process has just finished writing this file", path_, "choose another output");
  }
  if (!S_ISREG(opened.st_mode)) throw Error(ExitCode::data, "not a regular file", temporary, "remove it or choose another output");
  refuse_existing();
  if (opened.st_size < keep_bytes) {
    throw Error(ExitCode::data, "is shorter than the journal of the interrupted build says", temporary, "remove the partial files and build anew");
  }
  if (::ftruncate(fd, keep_bytes) != 0 || ::lseek(fd, keep_bytes, SEEK_SET) < 0) throw_io_error("write", temporary, errno, ExitCode::data);
  file_ = std::move(file);
  buffer_.reserve(buffer_bytes);
}

OutputFile::~OutputFile() {
  if (!committed_ && !kept_) ::unlink(file_.path().c_str());
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
  file_.write_all(buffer_.data(), buffer_.size());
  buffer_.clear();
}

void OutputFile::sync() {
  flush();
  file_.sync();
}

void OutputFile::commit() {
  refuse_existing();
  rename_path(file_.path(), path_, ExitCode::data);
  committed_ = true;
}

void OutputFile::keep() { kept_ = true; }

void OutputFile::withdraw() {
  if (committed_) ::unlink(path_.c_str());
}

}  // namespace octet::data
