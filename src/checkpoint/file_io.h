// Durable file operations under the checkpoint store and the run directory (POSIX).
//
// Every failure throws Error(ExitCode::checkpoint) that names the path, the operation and the system's reason.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

namespace octet {

// Owns a file descriptor.
class Fd {
 public:
  explicit Fd(int fd = -1) : fd_(fd) {}
  ~Fd();
  Fd(Fd&& o) noexcept : fd_(std::exchange(o.fd_, -1)) {}
  Fd& operator=(Fd&& o) noexcept {
    std::swap(fd_, o.fd_);
    return *this;
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

// "PATH: cannot ACTION: strerror(error) (what to do)".
[[noreturn]] void throw_io_error(std::string_view action, const std::filesystem::path& path, int error);

// Opens an existing regular file for reading; anything else (directory, pipe, device) is an error, and a pipe does not block.
// size_bytes receives its size.
Fd open_for_read(const std::filesystem::path& path, uint64_t& size_bytes);

// Creates or truncates a file for writing.
Fd open_for_write(const std::filesystem::path& path);

void write_all(int fd, const void* data, size_t bytes, const std::filesystem::path& path);

// Reads exactly `bytes` at `offset`; a file that ends earlier is an error.
void read_exact(int fd, void* out, size_t bytes, uint64_t offset, const std::filesystem::path& path);

// fsync, then close with its error checked (some file systems report a failed write only there).
void sync_and_close(Fd fd, const std::filesystem::path& path);

// Makes creations, renames and removals in a directory durable.
void sync_directory(const std::filesystem::path& directory);

void rename_path(const std::filesystem::path& from, const std::filesystem::path& to);
void remove_tree(const std::filesystem::path& path);

// Whole content of a regular file of at most max_bytes.
std::string read_file(const std::filesystem::path& path, uint64_t max_bytes);

// Replaces a file so that a reader or a crash sees the old or the new content, never a part: PATH.tmp.<pid>, fsync, rename,
// fsync of the directory. On failure the temporary file is removed and the old content stays.
void write_file_atomic(const std::filesystem::path& path, std::string_view content);

}  // namespace octet
