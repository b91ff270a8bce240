#include "comm/agree.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <new>
#include <optional>
#include <thread>

namespace octet {
namespace {

// An error as the ranks pass it on: code and three texts, whose lengths come first. Empty: none.
std::string pack(const std::optional<Error>& e) {
  if (!e) return {};
  return fmt::format("{} {} {} {} {}{}{}", static_cast<int>(e->code), e->message.size(), e->where.size(), e->fix.size(), e->message, e->where, e->fix);
}

Error unpack(const std::string& text) {
  size_t numbers[4] = {}, at = 0;
  for (size_t& n : numbers) {
    const size_t end = text.find(' ', at);
    n = std::stoul(text.substr(at, end - at));
    at = end + 1;
  }
  const auto take = [&](size_t n) {
    at += n;
    return text.substr(at - n, n);
  };
  const std::string message = take(numbers[1]), where = take(numbers[2]), fix = take(numbers[3]);
  return {static_cast<ExitCode>(numbers[0]), message, where, fix};
}

}  // namespace

void agree(Comm* all, const World& world, const std::function<void()>& work) {
  if (!all) return work();
  std::optional<Error> own;
  try {
    work();
  } catch (const Error& e) {
    own = e;
  } catch (const std::bad_alloc&) {
    own = Error(ExitCode::device, "out of memory");
  } catch (const std::exception& e) {
    own = Error(ExitCode::internal, e.what());
  }
  const std::vector<std::string> errors = exchange(*all, pack(own));
  const auto first = std::find_if(errors.begin(), errors.end(), [](const std::string& e) { return !e.empty(); });
  if (first == errors.end()) return;
  Error e = unpack(*first);
  const bool everywhere = std::all_of(errors.begin(), errors.end(), [&](const std::string& other) { return other == *first; });
  const auto rank = static_cast<size_t>(first - errors.begin());
  if (!everywhere) e = Error(e.code, fmt::format("{} (rank {} on {})", e.message, rank, world.hosts()[rank]), e.where, e.fix);
  e.shared = true;
  throw e;
}

std::string from_first(Comm* all, const World& world, const std::function<std::string()>& find) {
  std::string found;
  agree(all, world, [&] {
    if (!all || all->rank() == 0) found = find();
  });
  return all ? exchange(*all, found).front() : found;
}

void end_rank(World& world, const Error& error, const std::string& line) {
  if (!error.shared || world.rank() == 0) fmt::print(stderr, "{}\n", line);
  std::fflush(stdout);
  std::fflush(stderr);
  if (!error.shared) world.poison(error.code, error.what());
  // The rank that prints goes first: launchers kill the others when one has ended with an error.
  if (error.shared && world.rank() != 0) std::this_thread::sleep_for(std::chrono::milliseconds(200));
  _exit(static_cast<int>(error.code));
}

}  // namespace octet
