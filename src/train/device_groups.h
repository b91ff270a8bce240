// How ranks on GPUs exchange what lies in their GPUs' memory: through NCCL, or staged through the host's memory and MPI (parallel.backend).
#pragma once
#include "comm/staged.h"
#include "comm/world.h"
#include "config/run_config.h"
#include "ops/machine.h"

namespace octet {

// NCCL's version; empty in a build without it.
std::string nccl_library();
// Of a job whose ranks compute on GPUs. "auto" is NCCL in a build that has it, unless ranks share a GPU, which NCCL refuses.
bool uses_nccl(const RunConfig& config);
// Errors: Error(config) for a backend that this build or these devices do not have. cuda: the run computes on GPUs.
void check_backend(const RunConfig& config, bool cuda);
// Device memory that NCCL takes for so many groups: its buffers and its kernels (measured: docs/benchmarks/multi_gpu.md).
size_t nccl_bytes(int groups);

// Both outlive the operations of the groups made with them.
DeviceGroups device_groups(const RunConfig& config, World& world, Machine& machine);
DeviceCopies device_copies(Machine& machine);

}  // namespace octet
