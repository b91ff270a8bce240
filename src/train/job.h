// What a job's ranks settle before they compute: what their layout can not do, and whose GPU is whose.
#pragma once
#include "comm/mesh.h"
#include "comm/world.h"
#include "config/run_config.h"
#include "ops/machine.h"

namespace octet {

// Errors: Error(config) for what a job of so many ranks can not do.
void check_job(const RunConfig& config, int rank, int ranks);
// Of ranks on GPUs: each has a GPU of its own unless parallel.share_gpus says otherwise, else Error(config) on all. Called by all ranks, whose group is `all`.
void check_gpus(const RunConfig& config, const World& world, Comm& all, const Machine& machine);
// The same, and then the groups of the mesh work on the GPUs' memory, before they are used. Called by all ranks; world and machine outlive the groups' operations.
void join_devices(const RunConfig& config, World& world, Mesh& mesh, Machine& machine);

}  // namespace octet
