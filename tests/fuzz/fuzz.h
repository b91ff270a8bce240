// Shared by the fuzz targets. A target feeds one parser: it may refuse with octet::Error of the documented exit code; any other
// exception, a crash, a sanitizer's finding, a hang or a broken promise about an accepted input ends the program.
#pragma once
#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <initializer_list>
#include <string>
#include <string_view>

#include "core/error.h"

namespace octet::fuzz {

inline std::string_view text_of(const uint8_t* data, size_t size) { return {reinterpret_cast<const char*>(data), size}; }

// A promise about an accepted input.
inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "broken promise: %s\n", what);
  std::abort();
}

// Runs body; true when it accepted its input. An Error must have one of the codes and say something on one line.
template <class Body>
bool accepts(std::initializer_list<ExitCode> codes, Body&& body) {
  try {
    body();
    return true;
  } catch (const Error& e) {
    bool expected = false;
    for (const ExitCode code : codes) expected = expected || e.code == code;
    if (!expected) std::fprintf(stderr, "exit code %d: %s\n", static_cast<int>(e.code), e.what());
    require(expected, "a refusal has its documented exit code");
    require(!e.message.empty(), "a refusal says why");
    return false;
  }
}

// A folder in memory for parsers of files; it is emptied when the process ends by itself.
class Scratch {
 public:
  Scratch() : folder_(std::filesystem::exists("/dev/shm") ? "/dev/shm" : std::filesystem::temp_directory_path()) {
    folder_ /= "octet-fuzz-" + std::to_string(::getpid());
    std::filesystem::create_directories(folder_);
  }
  ~Scratch() { std::filesystem::remove_all(folder_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  std::filesystem::path path(const std::string& name) const { return folder_ / name; }

  // Writes the file anew; `holes` zero bytes follow the content without being stored.
  void write(const std::string& name, std::string_view content, uint64_t holes = 0) const {
    const int fd = ::open(path(name).c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    bool good = fd >= 0 && ::write(fd, content.data(), content.size()) == static_cast<ssize_t>(content.size());
    good = good && ::ftruncate(fd, static_cast<off_t>(content.size() + holes)) == 0;
    if (fd >= 0) ::close(fd);
    if (!good) {
      std::perror("the scratch folder cannot be written");
      std::exit(1);
    }
  }

 private:
  std::filesystem::path folder_;
};

}  // namespace octet::fuzz
