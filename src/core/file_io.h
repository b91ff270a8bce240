// Files (POSIX) whose failures are octet::Error: whole reads and writes, durable writes, atomic replacement.
//
// Every error names the path, the operation, the system's reason and a remedy. Its exit code is the caller's, for only the caller
// knows whether the path is a token file, a checkpoint or a report; a failure for want of room (disk or quota full, file size limit)
// is ExitCode::checkpoint whatever the caller's code, as docs/reference/exit_codes.md has it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

#include "core/error.h"

namespace octet {

// "PATH: cannot ACTION: strerror(error) (fix)"; an empty fix becomes the remedy of that error number.
[[noreturn]] void throw_io_error(std::string_view action, const std::filesystem::path& path, int error, ExitCode code, std::string fix = {});

// Owns an open file descriptor, and the path and exit code its errors carry. const members may be called from several threads,
// except read_some, which moves the file position.
class File {
 public:
  File() = default;
  // Takes over a descriptor; a negative one makes a File that is not open.
  File(int fd, std::filesystem::path path, ExitCode code) : fd_(fd), path_(std::move(path)), code_(code) {}
  ~File();
  File(File&& o) noexcept : fd_(std::exchange(o.fd_, -1)), path_(std::move(o.path_)), code_(o.code_) {}
  File& operator=(File&& o) noexcept;
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  // Opens a regular file; anything else (directory, pipe, device) is an error, and a pipe does not block. `fix` is the remedy to print.
  static File open_for_read(const std::filesystem::path& path, ExitCode code, const std::string& fix = {});
  // Creates or truncates a file for writing.
  static File create(const std::filesystem::path& path, ExitCode code);

  explicit operator bool() const { return fd_ >= 0; }
  int fd() const { return fd_; }
  const std::filesystem::path& path() const { return path_; }
  uint64_t size_bytes() const;

  // Reads exactly `bytes` at `offset`; a file that ends earlier is an error.
  void read_exact(void* out, size_t bytes, uint64_t offset) const;
  // Reads up to `bytes` at the file position; returns 0 at the end of the file.
  size_t read_some(void* out, size_t bytes) const;
  // Writes all bytes at the file position.
  void write_all(const void* data, size_t bytes);
  void sync();   // fsync
  void close();  // with its error checked: some file systems report a failed write only there

 private:
  int fd_ = -1;
  std::filesystem::path path_;
  ExitCode code_ = ExitCode::internal;
};

// Makes the creation, renaming or removal of `path` durable: fsync of the directory that holds it.
void sync_parent_directory(const std::filesystem::path& path, ExitCode code);

void rename_path(const std::filesystem::path& from, const std::filesystem::path& to, ExitCode code);
void remove_tree(const std::filesystem::path& path, ExitCode code);

// Makes the folder that `path` will lie in, and those above it, where they are missing.
void make_parent_directory(const std::filesystem::path& path, ExitCode code);

// Whole content of a regular file of at most max_bytes.
std::string read_file(const std::filesystem::path& path, uint64_t max_bytes, ExitCode code);

// Replaces a file so that a reader or a crash sees the old or the new content, never a part: PATH.tmp.<pid>, fsync, rename,
// fsync of the directory. On failure the temporary file is removed and the old content stays. A symbolic link is followed; a directory,
// device or pipe is refused with ExitCode::config.
void write_file_atomic(const std::filesystem::path& path, std::string_view content, ExitCode code);

// Removes what killed calls of write_file_atomic(path) left: PATH.tmp.<pid> of processes that do not run here. Only where nobody
// on another machine writes `path` at the same time. What cannot be removed stays.
void remove_leftovers(const std::filesystem::path& path);

}  // namespace octet
