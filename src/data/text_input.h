// Input files of `octet data`: plain, gzip (.gz, also several members one after the other) and Zstandard (.zst, several frames), told apart by
// their first bytes, not by their names. Memory is constant: a decompression bomb costs time only.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace octet::data {

enum class TextFormat { automatic, text, jsonl };   // automatic: jsonl for *.jsonl and *.json (also with .gz, .zst behind), else text

bool is_jsonl(const std::string& path, TextFormat format);

class TextInput {
 public:
  // Errors (ExitCode::data): missing, unreadable, not a regular file.
  explicit TextInput(const std::string& path);
  TextInput(TextInput&&) noexcept;
  TextInput& operator=(TextInput&&) noexcept;
  ~TextInput();

  // Up to `bytes` bytes of text, at least one; 0 at the end. Errors (ExitCode::data): damaged or truncated compressed data, bytes behind its
  // end, a Zstandard window above 128 MiB.
  size_t read(char* out, size_t bytes);
  // Goes on behind the first `bytes` bytes of text. Plain files seek, compressed ones are decompressed. An Error if the text is shorter.
  void skip(int64_t bytes);
  const std::string& path() const { return path_; }

 private:
  struct Source;
  std::string path_;
  std::unique_ptr<Source> source_;
};

}  // namespace octet::data
