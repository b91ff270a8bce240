#include "comm/mesh.h"

#include <fmt/format.h>

#include <algorithm>

namespace octet {

Layout layout_of(const RunConfig& c, int rank, int ranks) {
  const ParallelConfig& p = c.parallel;
  Layout l;
  l.tp = static_cast<int>(p.tp);
  if (ranks % l.tp != 0) throw Error(ExitCode::config, fmt::format("{}, which does not divide the {} rank{} of this job", p.tp, ranks, ranks == 1 ? "" : "s"), "parallel.tp", fmt::format("start it with mpirun -np N, a multiple of {}", p.tp));
  const int dp = ranks / l.tp;
  if (p.dp_replicate > dp || dp % p.dp_replicate != 0) {
    throw Error(ExitCode::config, fmt::format("{}, which does not divide the {} data-parallel ranks of this job", p.dp_replicate, dp), "parallel.dp_replicate", "set it to a divisor");
  }
  l.shards = p.zero == 0 ? 1 : dp / static_cast<int>(p.dp_replicate);
  l.replicas = dp / l.shards;
  const int64_t per_turn = c.batch.micro * dp;
  if (c.batch.global % per_turn != 0) {
    throw Error(ExitCode::config, fmt::format("{} sample{}, no multiple of {} data-parallel ranks times micro-batches of {}", c.batch.global, c.batch.global == 1 ? "" : "s", dp, c.batch.micro), "batch.global",
                fmt::format("set it to a multiple of {}", per_turn));
  }
  l.tp_rank = rank % l.tp;
  l.shard = rank / l.tp % l.shards;
  l.replica = rank / l.tp / l.shards;
  const auto kv_heads = static_cast<int>(c.model.num_key_value_heads);
  l.kv_copies = l.tp > 1 && l.tp > kv_heads ? l.tp / kv_heads : 1;
  return l;
}

std::string layout_text(const Layout& l) {
  std::string text = fmt::format("{} ranks: dp {}", l.tp * l.dp(), l.dp());
  if (l.shards > 1 && l.replicas > 1) text += fmt::format(" ({} shards x {} replicas)", l.shards, l.replicas);
  if (l.tp > 1) text += fmt::format(", tp {}", l.tp);
  return text;
}

Mesh::Mesh(const RunConfig& config, World& world) : layout_(layout_of(config, world.rank(), world.size())), rank_(world.rank()), size_(world.size()), local_rank_(world.local_rank()) {
  if (world.size() == 1) return;
  world_ = &world;
  host_ = world.hosts()[static_cast<size_t>(rank_)];
  // The ranks that have this one's coordinates but for one axis.
  const auto along = [&](int stride, int count, int own) {
    std::vector<int> ranks;
    for (int i = 0; i < count; ++i) ranks.push_back(rank_ + (i - own) * stride);
    return ranks;
  };
  all_ = world.group("all", world.everyone());
  const Layout& l = layout_;
  auto& [shards, replicas, tp, kv] = of_devices_;
  if (l.tp > 1) tp = world.group("tp", along(1, l.tp, l.tp_rank));
  if (l.kv_copies > 1) kv = world.group("kv", along(1, l.kv_copies, l.tp_rank % l.kv_copies));
  if (l.tp > 1) dp_host_ = world.group("dp host", along(l.tp, l.dp(), l.dp_rank()));
  if (l.shards > 1) shards = world.group("shard", along(l.tp, l.shards, l.shard));
  if (l.replicas > 1) replicas = world.group("replica", along(l.tp * l.shards, l.replicas, l.replica));
}

void Mesh::to_devices(const DeviceGroups& make) {
  for (auto& group : of_devices_) {
    if (group) group = make(std::move(group));
  }
}

int Mesh::device_groups() const {
  return static_cast<int>(std::count_if(of_devices_.begin(), of_devices_.end(), [](const auto& group) { return group != nullptr; }));
}

void Mesh::set_deadline(double seconds) const {
  if (!world_) return;
  world_->set_deadline(seconds);
  for (const auto& group : of_devices_) {
    if (group) group->set_deadline(seconds);
  }
}

std::vector<const Comm*> Mesh::groups() const {
  std::vector<const Comm*> all;
  for (const Comm* group : {all_.get(), dp_host_.get(), shards(), replicas(), tp(), kv()}) {
    if (group) all.push_back(group);
  }
  return all;
}

size_t Mesh::scratch_bytes() const {
  size_t bytes = 0;
  for (const auto& group : of_devices_) {
    if (group) bytes += World::scratch_bytes(group->size());
  }
  return bytes;
}

std::vector<Mesh::GroupTraffic> Mesh::traffic() const {
  std::vector<GroupTraffic> all;
  for (const Comm* group : groups()) all.push_back({group->name(), group->traffic()});
  return all;
}

}  // namespace octet
