// LineReader: lines of a regular file, numbered from 1, with a bound on their length.
#pragma once
#include <filesystem>
#include <fstream>
#include <string>

namespace octet::report {

class LineReader {
 public:
  static constexpr size_t max_line_bytes = size_t{16} << 20;

  // Throws Error(data) when the path is not a readable regular file.
  explicit LineReader(const std::filesystem::path& path);
  // False at the end. Throws Error(data) for a longer line.
  bool next(std::string& line);

  int64_t number() const { return number_; }
  bool ended_by_newline() const { return newline_; }
  std::string where() const { return path_.string() + ":" + std::to_string(number_); }

 private:
  std::filesystem::path path_;
  std::ifstream file_;
  int64_t number_ = 0;
  bool newline_ = false;
};

}  // namespace octet::report
