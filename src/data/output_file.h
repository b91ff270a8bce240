// The output of `octet data build`: a file that is there whole or not at all, and never in place of another.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "core/file_io.h"

namespace octet::data {

// An output file beside its final name: created as PATH.tmp under an exclusive lock (a leftover of a killed run is reused, a second
// writer is refused), buffered, renamed to PATH by commit(). Destroyed without commit() it leaves nothing behind.
// Errors: ExitCode::data when PATH exists already, is being written or cannot be written, or PATH.tmp is shorter than what is to be kept of
// it; ExitCode::checkpoint on a full disk.
class OutputFile {
 public:
  // keep_bytes: so much of a PATH.tmp that is there stays, and writing goes on behind it.
  explicit OutputFile(std::string path, int64_t keep_bytes = 0);
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile();

  void write(const void* from, size_t bytes);
  void flush();        // buffer to file
  void sync();         // buffer to disk
  void commit();       // after sync(): rename to the final name; never replaces a file
  void withdraw();     // after commit(): removes the final name again
  void keep();         // PATH.tmp stays when this is destroyed without commit()
  int64_t bytes_written() const { return bytes_; }
  const File& file() const { return file_; }

 private:
  void refuse_existing() const;

  std::string path_, buffer_;
  File file_;  // under its temporary name
  int64_t bytes_ = 0;
  bool committed_ = false, kept_ = false;
};

}  // namespace octet::data
