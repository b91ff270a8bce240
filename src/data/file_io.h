// File descriptors with RAII, and whole reads and writes whose failures are octet::Error.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace octet::data {

class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.release()) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  ~FileDescriptor() { close(); }

  int get() const { return fd_; }
  void close();

 private:
  int release();
  int fd_ = -1;
};

// Opens a regular file for reading. Errors: ExitCode::data when it is missing, unreadable or not a regular file; `fix` is the remedy to print.
FileDescriptor open_for_reading(const std::string& path, const std::string& fix);

// Size in bytes of an open file.
int64_t file_size(const FileDescriptor& file, const std::string& path);

// Reads exactly `bytes` bytes at `offset`. Errors: ExitCode::data when the file ends early (it shrank since it was opened) or cannot be read.
void read_exactly(const FileDescriptor& file, const std::string& path, int64_t offset, void* out, size_t bytes);

// Reads up to `bytes` bytes at the file position; returns 0 at the end of the file.
size_t read_some(const FileDescriptor& file, const std::string& path, void* out, size_t bytes);

// Writes all bytes. Errors: ExitCode::checkpoint when the disk or the quota is full, ExitCode::data for any other failure.
void write_exactly(const FileDescriptor& file, const std::string& path, const void* from, size_t bytes);

// fsync of a file, or of a directory after a rename in it. Errors as write_exactly.
void sync_file(const FileDescriptor& file, const std::string& path);
void sync_directory_of(const std::string& path);

// An output file beside its final name: created as PATH.tmp under an exclusive lock (a leftover of a killed run is reused, a second
// writer is refused), buffered, renamed to PATH by commit(). Destroyed without commit() it leaves nothing behind.
// Errors: ExitCode::data when PATH exists already or is being written; as write_exactly otherwise.
class OutputFile {
 public:
  explicit OutputFile(std::string path);
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile();

  void write(const void* from, size_t bytes);
  void flush();        // buffer to file
  void sync();         // buffer to disk
  void commit();       // after sync(): rename to the final name; never replaces a file
  void withdraw();     // after commit(): removes the final name again
  int64_t bytes_written() const { return bytes_; }
  const FileDescriptor& file() const { return file_; }
  const std::string& temporary_path() const { return temporary_; }

 private:
  void refuse_existing() const;

  std::string path_, temporary_, buffer_;
  FileDescriptor file_;
  int64_t bytes_ = 0;
  bool committed_ = false;
};

}  // namespace octet::data
