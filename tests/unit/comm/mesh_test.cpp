// The layout of a job, and errors that all its ranks learn of.
#include "comm/mesh.h"

#include <gtest/gtest.h>

#include <mutex>
#include <set>

#include "comm/agree.h"

namespace octet {
namespace {

RunConfig config(int64_t zero, int64_t replicas, int64_t micro = 2, int64_t global = 24) {
  RunConfig c;
  c.parallel.zero = zero;
  c.parallel.dp_replicate = replicas;
  c.batch.micro = micro;
  c.batch.global = global;
  return c;
}

std::string refusal(const RunConfig& c, int ranks) {
  try {
    layout_of(c, 0, ranks);
  } catch (const Error& e) {
    EXPECT_EQ(e.code, ExitCode::config);
    return e.what();
  }
  return {};
}

TEST(Mesh, ShardsAreNeighboursAndReplicasLieApart) {
  const RunConfig c = config(2, 2);
  for (int rank = 0; rank < 6; ++rank) {
    const Layout l = layout_of(c, rank, 6);
    EXPECT_EQ(l.shards, 3);
    EXPECT_EQ(l.replicas, 2);
    EXPECT_EQ(l.shard, rank % 3);
    EXPECT_EQ(l.replica, rank / 3);
    EXPECT_EQ(l.dp_rank(), rank);
  }
  EXPECT_EQ(layout_of(config(0, 1), 5, 6).replicas, 6) << "without ZeRO every rank keeps everything";
  EXPECT_EQ(layout_text(layout_of(c, 0, 6)), "6 ranks: dp 6 (3 shards x 2 replicas)");
}

TEST(Mesh, RefusesWhatDoesNotDivide) {
  EXPECT_EQ(refusal(config(1, 4), 6), "parallel.dp_replicate: 4, which does not divide the 6 data-parallel ranks of this job (set it to a divisor)");
  EXPECT_EQ(refusal(config(1, 12), 6), "parallel.dp_replicate: 12, which does not divide the 6 data-parallel ranks of this job (set it to a divisor)");
  EXPECT_EQ(refusal(config(1, 1, 2, 20), 3), "batch.global: 20 samples, no multiple of 3 data-parallel ranks times micro-batches of 2 (set it to a multiple of 6)");
  EXPECT_EQ(refusal(config(1, 1), 6), "");
}

// Which ranks a group joins: a sum of 1 << rank over it.
TEST(Mesh, GroupsJoinTheRanksOfTheirAxis) {
  std::mutex mutex;
  std::set<int64_t> shards, replicas, dp;
  run_local_ranks(6, [&](World& world) {
    const Mesh mesh(config(3, 2), world);
    const int64_t s = sum_of(*mesh.shards(), 1 << world.rank()), r = sum_of(*mesh.replicas(), 1 << world.rank()), d = sum_of(*mesh.dp_host(), 1 << world.rank());
    const std::lock_guard lock(mutex);
    shards.insert(s);
    replicas.insert(r);
    dp.insert(d);
  });
  EXPECT_EQ(shards, (std::set<int64_t>{0b000111, 0b111000}));
  EXPECT_EQ(replicas, (std::set<int64_t>{0b001001, 0b010010, 0b100100}));
  EXPECT_EQ(dp, (std::set<int64_t>{0b111111}));
}

TEST(Agree, AnErrorOfOneRankIsEverybodys) {
  for (const int failing : {0, 2}) {
    run_local_ranks(3, [&](World& world) {
      const auto all = world.group("all", {0, 1, 2});
      agree(all.get(), world, [] {});
      try {
        agree(all.get(), world, [&] {
          if (world.rank() >= failing) throw Error(ExitCode::data, "broken\nin two lines", "file 7", "mend it");
        });
        ADD_FAILURE() << "no error";
      } catch (const Error& e) {
        EXPECT_EQ(e.code, ExitCode::data);
        EXPECT_EQ(e.where, "file 7");
        EXPECT_EQ(e.fix, "mend it");
        EXPECT_TRUE(e.shared);
        // Where all have the same, no rank is named.
        EXPECT_EQ(e.message, failing == 0 ? "broken\nin two lines" : "broken\nin two lines (rank 2 on " + world.hosts()[2] + ")");
      }
      EXPECT_EQ(from_first(all.get(), world, [&] { return world.rank() == 0 ? std::string("found") : std::string("not asked"); }), "found");
    });
  }
}

}  // namespace
}  // namespace octet
