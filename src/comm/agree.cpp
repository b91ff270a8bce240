#include "comm/agree.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>

#include "config/nearest.h"
#include "core/error_text.h"

namespace octet {
void agree(Comm* all, const World& world, const std::function<void()>& work) {
  if (!all) return work();
  std::string own;
  try {
    work();
  } catch (...) {
    own = error_text(caught_error());
  }
  const std::vector<std::string> errors = exchange(*all, own);
  const auto first = std::find_if(errors.begin(), errors.end(), [](const std::string& e) { return !e.empty(); });
  if (first == errors.end()) return;
  Error e = error_of_text(*first);
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

void end_rank(World& world) {
  const Error error = caught_error();
  if (!error.shared || world.rank() == 0) fmt::print(stderr, "octet: error: {}\n", printable(error.what(), 2000));
  std::fflush(stdout);
  std::fflush(stderr);
  if (!error.shared) world.poison(error.code, error.what());
  // The rank that prints goes first: launchers kill the others when one has ended with an error.
  if (error.shared && world.rank() != 0) std::this_thread::sleep_for(std::chrono::milliseconds(200));
  _exit(static_cast<int>(error.code));
}

}  // namespace octet
