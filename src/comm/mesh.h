// Mesh: the parallel layout of a job: which ranks share what, as named groups.
//
// Ranks count fastest first: tensor-parallel peers (tp) are neighbours, then the shards of ZeRO (shard), then the replicas of those (replica). Data parallelism (dp) is
// shard x replica: its members see different samples. A parameter's gradient is summed over dp; what of the optimizer's state a rank keeps is decided
// by its place in shard. Tensor-parallel peers see the same samples and have parts of each matrix (model/tensor_parallel.h). Where there are more of them than key/value heads, those that have
// the same head are a group too (kv).
#pragma once
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "comm/staged.h"
#include "comm/world.h"
#include "config/run_config.h"

namespace octet {

// Sizes and this rank's coordinates.
struct Layout {
  int tp = 1, shards = 1, replicas = 1;
  int tp_rank = 0, shard = 0, replica = 0;
  int kv_copies = 1;   // neighbours in tp that have the same key/value head
  int dp() const { return shards * replicas; }
  // Which samples: the dp ranks take a step's micro-batches in turn.
  int dp_rank() const { return replica * shards + shard; }
};

// Errors: Error(config) when the ranks do not divide among the axes, or the global batch among the data-parallel ranks.
Layout layout_of(const RunConfig& config, int rank, int ranks);
// "4 ranks: dp 4 (2 shards x 2 replicas)"
std::string layout_text(const Layout& layout);

class Mesh {
 public:
  // One process alone: no groups.
  Mesh() = default;
  // Called by all ranks of the world, which outlives the mesh.
  Mesh(const RunConfig& config, World& world);

  const Layout& layout() const { return layout_; }
  bool alone() const { return world_ == nullptr; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  // Among the ranks of its machine.
  int local_rank() const { return local_rank_; }
  const std::string& host() const { return host_; }
  // The rank that prints, and writes what all share.
  bool first() const { return rank_ == 0; }

  // Before the groups are used, by all ranks: shards, replicas, tp and kv work on devices' memory from now on.
  void to_devices(const DeviceGroups& make);
  // Of operations that start from now on, on this rank; nothing alone.
  void set_deadline(double seconds) const;
  // Groups that to_devices() makes again.
  int device_groups() const;
  // Host memory that operations on gradients and weights take, at most, unless they go through NCCL.
  size_t scratch_bytes() const;
  // What this rank sent, by group.
  struct GroupTraffic {
    std::string group;
    TrafficTable table;
  };
  std::vector<GroupTraffic> traffic() const;

  // Groups; null where they have one member. Host memory: numbers and texts of all ranks.
  Comm* all() const { return all_.get(); }
  // Host memory too: the data-parallel ranks' sums that the host needs.
  Comm* dp_host() const { return dp_host_ ? dp_host_.get() : all_.get(); }
  // Memory of the device: gradients and weights. A sum over the data-parallel ranks is one over the shards, then one over the replicas.
  Comm* shards() const { return of_devices_[0].get(); }
  Comm* replicas() const { return of_devices_[1].get(); }
  Comm* tp() const { return of_devices_[2].get(); }
  Comm* kv() const { return of_devices_[3].get(); }

 private:
  Layout layout_;
  World* world_ = nullptr;
  int rank_ = 0, size_ = 1, local_rank_ = 0;
  std::string host_;
  std::vector<const Comm*> groups() const;

  std::unique_ptr<Comm> all_, dp_host_;
  std::array<std::unique_ptr<Comm>, 4> of_devices_;   // shards, replicas, tp, kv
};

}  // namespace octet
