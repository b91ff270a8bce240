#include "core/error_text.h"

#include <fmt/format.h>

#include <new>

namespace octet {

Error caught_error() {
  try {
    throw;
  } catch (const Error& e) {
    return e;
  } catch (const std::bad_alloc&) {
    return {ExitCode::device, "out of memory"};
  } catch (const std::exception& e) {
    return {ExitCode::internal, fmt::format("internal error: {}", e.what())};
  } catch (...) {
    return {ExitCode::internal, "internal error: unknown exception"};
  }
}

// The lengths of the texts come first.
std::string error_text(const Error& e) {
  return fmt::format("{} {} {} {} {}{}{}", static_cast<int>(e.code), e.message.size(), e.where.size(), e.fix.size(), e.message, e.where, e.fix);
}

Error error_of_text(std::string_view text) {
  size_t numbers[4] = {}, at = 0;
  for (size_t& n : numbers) {
    const size_t end = text.find(' ', at);
    n = std::stoul(std::string(text.substr(at, end - at)));
    at = end + 1;
  }
  const auto take = [&](size_t n) {
    at += n;
    return std::string(text.substr(at - n, n));
  };
  const std::string message = take(numbers[1]), where = take(numbers[2]), fix = take(numbers[3]);
  return {static_cast<ExitCode>(numbers[0]), message, where, fix};
}

}  // namespace octet
