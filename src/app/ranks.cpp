#include "app/ranks.h"

#include <fmt/format.h>

#include <cstdlib>
#include <numeric>

#include "comm/agree.h"
#include "config/nearest.h"
#include "core/error_text.h"

namespace octet {

int run_job(const std::function<int(World&)>& program) {
  const World::Options options{startup_deadline_s, [](const char* name) -> const char* { return std::getenv(name); }};
  return run_ranks(options, [&](World& world) {
    try {
      return program(world);
    } catch (...) {
      if (world.size() == 1) throw;
      const Error e = caught_error();
      end_rank(world, e, fmt::format("octet: error: {}", printable(e.what(), 2000)));
    }
  });
}

std::unique_ptr<Comm> all_ranks(World& world) {
  if (world.size() == 1) return nullptr;
  std::vector<int> everyone(static_cast<size_t>(world.size()));
  std::iota(everyone.begin(), everyone.end(), 0);
  return world.group("start", everyone);
}

}  // namespace octet
