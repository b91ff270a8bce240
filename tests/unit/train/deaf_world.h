// A world with a group that does not do what it says.
#pragma once
#include <algorithm>
#include <memory>
#include <string>

#include "comm/world.h"
#include "train/engine.h"

namespace octet::test {

// A group whose operations do nothing, as if its ranks were others than the mesh says.
class DeafComm : public Comm {
 public:
  DeafComm(const std::string& name, int rank, int size) : Comm(name, rank, size) {}
  Ticket start(const Collective&) override { return 0; }
  void wait(Ticket) override {}
  TrafficTable traffic() const override { return {}; }
};

class WorldWithADeafGroup : public World {
 public:
  WorldWithADeafGroup(World& world, std::string deaf) : world_(world), deaf_(std::move(deaf)) {
    rank_ = world.rank();
    size_ = world.size();
    hosts_ = world.hosts();
  }
  std::unique_ptr<Comm> group(const std::string& name, const std::vector<int>& ranks) override {
    if (name != deaf_) return world_.group(name, ranks);
    return std::make_unique<DeafComm>(name, static_cast<int>(std::find(ranks.begin(), ranks.end(), rank_) - ranks.begin()), static_cast<int>(ranks.size()));
  }
  void set_deadline(double seconds) override { world_.set_deadline(seconds); }
  void poison(ExitCode code, const std::string& what) override { world_.poison(code, what); }

 private:
  World& world_;
  std::string deaf_;
};

// What the start-up proof says on this rank when the group `deaf` does nothing; empty: it finds nothing.
inline std::string proof_with_deaf_group(const RunConfig& c, World& world, const std::string& deaf) {
  WorldWithADeafGroup with_deaf(world, deaf);
  const Mesh mesh(c, with_deaf);
  Engine e(c, Engine::Memory::plain, {}, &mesh);
  try {
    e.join_ranks();
  } catch (const std::exception& error) {
    return error.what();
  }
  return {};
}

}  // namespace octet::test
