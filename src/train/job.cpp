#include "train/job.h"

#include <fmt/format.h>

#include <algorithm>

#include "comm/agree.h"
#include "train/device_groups.h"

namespace octet {

void check_job(const RunConfig& config, int rank, int ranks) {
  const Layout layout = layout_of(config, rank, ranks);
  check_backend(config, device_kind(config.run.device) == DeviceKind::cuda);
  if (ranks == 1) return;
  if (config.optim.fused_images) {
    throw Error(ExitCode::config, "true, in a job of several ranks: the optimizer of each has some rows of a weight only", "optim.fused_images", "set it to false");
  }
  if (config.parallel.fp8_param_gather && layout.shards == 1) {
    throw Error(ExitCode::config, "true, but this layout has one shard, and gathers no weights", "parallel.fp8_param_gather", "set it to false, or start more data-parallel ranks");
  }
}

// Ranks that share a GPU without having been asked to are a mistake in the launch.
void check_gpus(const RunConfig& config, const World& world, Comm& all, const Machine& machine) {
  const std::vector<std::string> uuids = exchange(all, machine.device_uuid());
  agree(&all, world, [&] {
    for (size_t a = 0; a < uuids.size() && !config.parallel.share_gpus; ++a) {
      const auto b = static_cast<size_t>(std::find(uuids.begin(), uuids.begin() + static_cast<std::ptrdiff_t>(a), uuids[a]) - uuids.begin());
      if (b < a) {
        throw Error(ExitCode::config, fmt::format("ranks {} and {} on {} would share {}", b, a, world.hosts()[a], uuids[a]), "run.device",
                    "start one rank for each GPU, or set parallel.share_gpus");
      }
    }
  });
}

void join_devices(const RunConfig& config, World& world, Mesh& mesh, Machine& machine) {
  check_gpus(config, world, *mesh.all(), machine);
  mesh.to_devices(device_groups(config, world, machine));
}

}  // namespace octet
