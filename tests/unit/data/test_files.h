// Temporary directories and small token files for the data tests.
#pragma once
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/philox.h"
#include "data/indexed_dataset.h"

namespace octet::data {

class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "octet_data_XXXXXX").string();
    if (!mkdtemp(name.data())) throw std::runtime_error("mkdtemp failed");
    path_ = name;
  }
  ~TemporaryDirectory() { std::filesystem::remove_all(path_); }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  // Names in it, sorted.
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) all.push_back(entry.path().filename().string());
    std::sort(all.begin(), all.end());
    return all;
  }

 private:
  std::filesystem::path path_;
};

inline void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

inline std::string read_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// One document a sequence; token = id(sequence, position).
inline void write_documents(const std::string& prefix, const std::vector<int64_t>& lengths, const std::function<int32_t(int64_t, int64_t)>& id,
                            TokenType type = TokenType::u16) {
  IndexedDatasetWriter writer(prefix, type);
  for (size_t s = 0; s < lengths.size(); ++s) {
    std::vector<int32_t> tokens;
    for (int64_t p = 0; p < lengths[s]; ++p) tokens.push_back(id(static_cast<int64_t>(s), p));
    writer.append(tokens);
    writer.end_document();
  }
  writer.finish();
}

// The Error that `body` throws; a test failure when it throws none.
inline Error error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "no error was thrown";
  return Error(ExitCode::ok, "");
}

// Fails unless `body` throws an Error of that code whose line contains `part`, is one line, and says how to fix it.
inline void expect_error(ExitCode code, const std::string& part, const std::function<void()>& body) {
  const Error error = error_of(body);
  const std::string line = error.what();
  EXPECT_EQ(static_cast<int>(error.code), static_cast<int>(code)) << line;
  EXPECT_NE(line.find(part), std::string::npos) << line << "\n  lacks: " << part;
  EXPECT_EQ(line.find('\n'), std::string::npos) << line;
  EXPECT_FALSE(error.fix.empty()) << line;
}

// One step of FNV-1a, with a 64-bit value where the standard has a byte.
inline uint64_t fnv(uint64_t hash, uint64_t value) { return (hash ^ value) * 1099511628211ull; }
constexpr uint64_t fnv_start = fnv1a64("");  // the offset basis

}  // namespace octet::data
