#include "train/device_groups.h"

#include <fmt/format.h>

#ifdef OCTET_HAVE_NCCL
#include "comm/nccl.h"
#endif

namespace octet {
namespace {

#ifdef OCTET_HAVE_NCCL
constexpr bool has_nccl = true;

constexpr double connect_deadline_s = 120;   // the ranks come together within seconds

DeviceGroups nccl_groups(World& world, Machine& machine) {
  return [&world, &machine](std::unique_ptr<Comm> host) {
    auto group = std::make_unique<NcclComm>(world, *host, machine.stream(), connect_deadline_s);
    group->set_deadline(startup_deadline_s);
    return group;
  };
}
#else
constexpr bool has_nccl = false;

DeviceGroups nccl_groups(World&, Machine&) { throw Error(ExitCode::internal, "NCCL in a build without it"); }
#endif

}  // namespace

#ifdef OCTET_HAVE_NCCL
std::string nccl_library() { return nccl_version(); }
#else
std::string nccl_library() { return {}; }
#endif

bool uses_nccl(const RunConfig& c) { return c.parallel.backend == "nccl" || (c.parallel.backend == "auto" && has_nccl && !c.parallel.share_gpus); }

void check_backend(const RunConfig& c, bool cuda) {
  if (c.parallel.backend != "nccl") return;
  const std::string fix = "set it to \"auto\" or \"mpi\"; octet doctor says what there is";
  if (!cuda) throw Error(ExitCode::config, "\"nccl\", but this run computes on CPUs", "parallel.backend", fix);
  if (!has_nccl) throw Error(ExitCode::config, "\"nccl\", but this octet was built without NCCL", "parallel.backend", fix);
}

size_t nccl_bytes(int groups) {
  constexpr size_t kernels_bytes = size_t{290} << 20, group_bytes = size_t{570} << 20;
  return groups == 0 ? 0 : kernels_bytes + static_cast<size_t>(groups) * group_bytes;
}

DeviceGroups device_groups(const RunConfig& config, World& world, Machine& machine) {
  return uses_nccl(config) ? nccl_groups(world, machine) : staged_groups(device_copies(machine));
}

DeviceCopies device_copies(Machine& machine) {
  return {[&machine](void* host, const void* device, size_t bytes) { machine.copy_out(host, device, bytes); },
          [&machine](void* device, const void* host, size_t bytes) { machine.copy_in(device, host, bytes); }};
}

}  // namespace octet
