// Subcommands that run as the ranks of a job when a launcher (mpirun, srun) starts them.
#pragma once
#include <functional>

#include "comm/world.h"

namespace octet {

// program(world) on each rank, or in this process alone; its exit code. An error on one rank ends all, with its code and line.
int run_job(const std::function<int(World&)>& program);
// The group of all ranks; null where there is one.
std::unique_ptr<Comm> all_ranks(World& world);

}  // namespace octet
