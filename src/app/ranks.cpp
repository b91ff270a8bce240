#include "app/ranks.h"

#include <cstdlib>

#include "comm/agree.h"

namespace octet {

int run_job(const std::function<int(World&)>& program) {
  // NCCL reads it with its first group. Before there are threads, whose reading of the environment this would disturb.
  ::setenv("NCCL_NVLS_ENABLE", "0", 0);
  const World::Options options{startup_deadline_s, [](const char* name) -> const char* { return std::getenv(name); }};
  return run_ranks(options, [&](World& world) {
    try {
      return program(world);
    } catch (...) {
      if (world.size() == 1) throw;
      end_rank(world);
    }
  });
}

std::unique_ptr<Comm> all_ranks(World& world) {
  return world.size() == 1 ? nullptr : world.group("start", world.everyone());
}

}  // namespace octet
