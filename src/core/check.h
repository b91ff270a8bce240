// OCTET_CHECK(condition, format, args...): an invariant of ours. Failing one is a bug (exit code 70) and says which values
// broke it. User mistakes are reported with octet::Error instead.
#pragma once
#include <fmt/format.h>

#include "core/error.h"

namespace octet {
[[noreturn]] inline void check_failed(const char* condition, const char* file, int line, const std::string& message) {
  throw Error(ExitCode::internal, fmt::format("internal error: {} [{}]", message, condition), fmt::format("{}:{}", file, line),
              "please report this with the command line and log.txt");
}
}  // namespace octet

#define OCTET_CHECK(condition, ...)                                                             \
  do {                                                                                          \
    if (!(condition)) ::octet::check_failed(#condition, __FILE__, __LINE__, fmt::format(__VA_ARGS__)); \
  } while (false)
