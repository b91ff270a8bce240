// Several ranks write one checkpoint: what it holds, and that all ranks agree about how it went.
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <map>

#include "checkpoint/inspect.h"
#include "unit/checkpoint/writers.h"

namespace octet {
namespace {

using namespace test;

constexpr int64_t w_rows = 13, w_columns = 3, b_elements = 7;

// w's rows and b's elements cut unevenly, v with the last rank, s with rank 0, h in columns.
class Parted {
 public:
  Parted() : w_(w_rows * w_columns), b_(b_elements), v_(16), h_(4 * 6) {
    std::iota(w_.begin(), w_.end(), 1.0f);
    std::iota(b_.begin(), b_.end(), 100.0f);
    std::iota(v_.begin(), v_.end(), 200.0f);
    std::iota(h_.begin(), h_.end(), 300);
  }
  std::vector<TensorToSave> all() const {
    return {{"model", "w", Dtype::f32, {w_rows, w_columns}, w_.data()}, {"optimizer", "exp_avg/b", Dtype::f32, {b_elements}, b_.data()},
            {"model", "v", Dtype::f32, {4, 4}, v_.data()},          {"state", "s", Dtype::f32, {}, &s_},
            {"state", "h", Dtype::i32, {4, 6}, h_.data()}};
  }
  // Rank `idle` has nothing; -1: all have something.
  std::vector<TensorToSave> of(int rank, int n, int idle) {
    std::vector<TensorToSave> mine;
    if (rank == idle) return mine;
    const int workers = n - (idle >= 0 ? 1 : 0), place = rank - (idle >= 0 && rank > idle ? 1 : 0);
    const auto cut = [&](int64_t total, int p) { return p == workers ? total : total * p * p / (workers * workers); };  // uneven, the first perhaps empty
    const int64_t r0 = cut(w_rows, place), r1 = cut(w_rows, place + 1), e0 = cut(b_elements, place), e1 = cut(b_elements, place + 1);
    mine.push_back({"model", "w", Dtype::f32, {r1 - r0, w_columns}, w_.data() + r0 * w_columns, Shape{w_rows, w_columns}, {r0, 0}});
    mine.push_back({"optimizer", "exp_avg/b", Dtype::f32, {e1 - e0}, b_.data() + e0, Shape{b_elements}, {e0}});
    if (place == workers - 1) mine.push_back({"model", "v", Dtype::f32, {4, 4}, v_.data()});
    if (place == 0) mine.push_back({"state", "s", Dtype::f32, {}, &s_});
    const int64_t c0 = 6 * place / workers, c1 = 6 * (place + 1) / workers;
    auto& own = columns_[static_cast<size_t>(rank)];
    for (int64_t r = 0; r < 4; ++r) {
      for (int64_t c = c0; c < c1; ++c) own.push_back(h_[static_cast<size_t>(r * 6 + c)]);
    }
    mine.push_back({"state", "h", Dtype::i32, {4, c1 - c0}, own.data(), Shape{4, 6}, {0, c0}});
    return mine;
  }

 private:
  std::vector<float> w_, b_, v_;
  std::vector<int32_t> h_;
  float s_ = -1.5f;
  std::array<std::vector<int32_t>, 4> columns_;
};

std::vector<std::string> names_of(const CheckpointDiff& d) {
  std::vector<std::string> names;
  for (const auto& t : d.different) names.push_back(t.name);
  return names;
}

TEST(Group, AnyNumberOfWritersMakesTheSameCheckpoint) {
  const TempDir dir;
  const nlohmann::json state = {{"step", 3}, {"note", "of rank 0"}};
  const auto one = save_checkpoint(dir.path() / "one", {.step = 3}, Parted().all(), state);
  for (int n = 1; n <= 4; ++n) {
    for (int idle = -1; idle < (n > 1 ? n : 0); ++idle) {
      SCOPED_TRACE(fmt::format("{} ranks, idle {}", n, idle));
      const fs::path checkpoints = dir.path() / fmt::format("many{}_{}", n, idle);
      Parted parted;
      const auto outcomes = save_together(n, [&](const SaveGroup& g) {
        return save_checkpoint(checkpoints, {.step = 3}, parted.of(g.rank, n, idle), g.rank == 0 ? state : nlohmann::json{{"other", NAN}}, g);
      });
      for (const Outcome& o : outcomes) {
        EXPECT_EQ(o.path, checkpoints / "step_0000000003");
        EXPECT_EQ(o.line, "");
      }
      const fs::path many = outcomes[0].path;
      EXPECT_EQ(listing(checkpoints), (std::vector<std::string>{"LATEST", "step_0000000003"}));

      // octet ckpt verify, ls and diff.
      EXPECT_EQ(checkpoint_faults(many), std::vector<std::string>{});
      const auto listed = list_checkpoints(checkpoints);
      ASSERT_EQ(listed.size(), 1u);
      EXPECT_EQ(listed[0].fault, "");
      EXPECT_TRUE(listed[0].latest);
      EXPECT_EQ(listed[0].tensors, 5u);
      const auto difference = diff_checkpoints(Checkpoint::open(one), Checkpoint::open(many));
      EXPECT_EQ(difference.tensors, 5u);
      EXPECT_EQ(names_of(difference), std::vector<std::string>{});
      EXPECT_TRUE(difference.state.empty());
      for (const auto& file : listing(many)) {
        if (file == "manifest.json") continue;
        EXPECT_EQ(file.find("-r000") != std::string::npos, n > 1) << file;
        if (idle >= 0) {
          EXPECT_EQ(file.find(fmt::format("-r{:04d}-", idle)), std::string::npos) << file;
        }
      }
    }
  }
}

TEST(Group, DamageInOneRanksFileIsFoundAndDiffersFromNothingElse) {
  const TempDir dir;
  const auto saved = save_together(3, [&](const SaveGroup& g) { return save_share(dir.path(), 1, 1, g); })[0].path;
  EXPECT_EQ(fill_of(saved), 1.0f);
  EXPECT_EQ(listing(saved), (std::vector<std::string>{"manifest.json", "model-r0000-00001.safetensors", "model-r0001-00001.safetensors",
                                                      "model-r0002-00001.safetensors", "optimizer-r0000-00001.safetensors",
                                                      "state-r0000-00001.safetensors"}));
  const fs::path shard = saved / "model-r0001-00001.safetensors";
  flip_bit(shard, fs::file_size(shard) - 1);
  const auto faults = checkpoint_faults(saved);
  ASSERT_EQ(faults.size(), 1u);
  expect_contains(faults[0], "model-r0001-00001.safetensors");
  expect_contains(faults[0], "up_proj.weight");
  fs::remove(shard);
  expect_contains(checkpoint_faults(saved).at(0), "model-r0001-00001.safetensors");
}

// One writer's files are those of the first version of the store, byte for byte.
TEST(Group, OneWriterWritesWhatItAlwaysDid) {
  const TempDir dir;
  const SmallState state(1.5f);
  std::vector<float> box(3 * 2);
  std::iota(box.begin(), box.end(), 1.0f);
  auto tensors = state.tensors();
  tensors.push_back({"model", "w", Dtype::f32, {1, 2}, box.data(), Shape{3, 2}, Shape{0, 0}});
  tensors.push_back({"model", "w", Dtype::f32, {2, 2}, box.data() + 2, Shape{3, 2}, Shape{1, 0}});
  SaveOptions options;
  options.step = 7;
  options.max_shard_bytes = 100;
  const auto saved = save_checkpoint(dir.path(), options, tensors, {{"step", 7}, {"fill", 1.5}});
  std::map<std::string, uint64_t> found;
  for (const auto& file : listing(saved)) {
    const std::string bytes = slurp(saved / file);
    found[file] = xxh64(bytes.data(), bytes.size());
  }
  EXPECT_EQ(found, (std::map<std::string, uint64_t>{{"manifest.json", 0xe6b74b31fac22fb0u},
                                                    {"model-00001.safetensors", 0x0a18ff6f2785b3fau},
                                                    {"model-00002.safetensors", 0x93365deec9d116b4u},
                                                    {"optimizer-00001.safetensors", 0x08a3a05f19e1440fu},
                                                    {"state-00001.safetensors", 0x310ffa91cae2fa1fu}}));
}

TEST(Group, PhasesAreThoseOfWhatARankDoes) {
  const TempDir dir;
  std::array<std::vector<SavePhase>, 2> seen;
  const auto save = [&](const SaveGroup& g) {
    auto& mine = seen[static_cast<size_t>(g.rank)];
    return save_share(dir.path(), 1, 1, g, 0, [&](SavePhase phase) { mine.push_back(phase); });
  };
  save_together(2, save);
  using P = SavePhase;
  EXPECT_EQ(seen[0], (std::vector<P>{P::temporary_made, P::shard_written, P::shard_written, P::shard_written, P::manifest_written, P::committed,
                                     P::latest_written, P::done}));
  EXPECT_EQ(seen[1], std::vector<P>{P::shard_written});
}

TEST(Group, SavesReplaceAndRetentionIsRankZeros) {
  const TempDir dir;
  const auto save = [&](int64_t step, float fill, int64_t keep_last) {
    for (const auto& o : save_together(3, [&](const SaveGroup& g) { return save_share(dir.path(), step, fill, g, g.rank == 0 ? keep_last : 1); })) {
      EXPECT_EQ(o.line, "");
      EXPECT_EQ(fill_of(o.path), fill);
    }
  };
  for (int64_t step : {1, 2, 3}) save(step, static_cast<float>(step), 2);
  EXPECT_EQ(listing(dir.path()), (std::vector<std::string>{"LATEST", "step_0000000002", "step_0000000003"}));
  save(3, 8, 0);
  EXPECT_EQ(listing(dir.path()), (std::vector<std::string>{"LATEST", "step_0000000002", "step_0000000003"}));
  save_small(dir.path(), 3, 9);  // one writer replaces what three wrote, and the other way round
  EXPECT_EQ(fill_of(dir.path() / "step_0000000003"), 9.0f);
  save(3, 10, 1);
  EXPECT_EQ(listing(dir.path()), (std::vector<std::string>{"LATEST", "step_0000000003"}));
}

TEST(Group, PartsThatDoNotTileAreOurBugAndWriteNothing) {
  const TempDir dir;
  const fs::path checkpoints = dir.path() / "c";
  const float x[16] = {};
  const auto refused = [&](const std::vector<std::vector<TensorToSave>>& by_rank, const std::string& part, int64_t last_step = 1) {
    const int n = static_cast<int>(by_rank.size());
    const auto outcomes = save_together(n, [&](const SaveGroup& g) {
      return save_checkpoint(checkpoints, {.step = g.rank + 1 == n ? last_step : 1}, by_rank[static_cast<size_t>(g.rank)], nullptr, g);
    });
    expect_contains(common_error(ExitCode::internal, outcomes), part);
    EXPECT_FALSE(fs::exists(checkpoints));
  };
  const auto box = [&](int64_t first, int64_t count, Dtype dtype = Dtype::f32) {
    return TensorToSave{"model", "w", dtype, {count, 2}, x, Shape{4, 2}, {first, 0}};
  };
  const TensorToSave whole{"model", "w", Dtype::f32, {4, 2}, x};
  refused({{}, {whole}, {whole}}, "tensor w is saved twice: rank 1's box at [0, 0] of shape [4, 2] and rank 2's at [0, 0]");
  refused({{box(0, 3)}, {}, {box(2, 2)}}, "rank 0's box at [0, 0] of shape [3, 2] and rank 2's at [2, 0]");
  refused({{box(0, 2)}, {box(1, 2)}}, "rank 0's box at [0, 0] of shape [2, 2] and rank 1's at [1, 0]");  // as many elements as there are, but twice
  refused({{box(0, 2)}, {box(3, 1)}}, "tensor w: boxes leave a hole");
  refused({{box(0, 2)}, {box(2, 3)}}, "sticks out");
  refused({{box(0, 2)}, {box(2, 2, Dtype::i32)}}, "boxes of tensor w differ in dtype or global shape between the ranks 0 and 1");
  refused({{}, {box(0, 2), box(0, 2)}}, "tensor w of group model is saved twice");
  refused({{}, {box(0, 2), box(0, 2)}}, ", rank 1 on host node1 (");
  refused({{whole}, {}}, "rank 1 saves step 2, rank 0 step 1", 2);
  std::vector<TensorToSave> many;
  for (int64_t i = 0; i <= static_cast<int64_t>(manifest_max_boxes); ++i) many.push_back({"model", "m", Dtype::f32, {1}, x, Shape{16385}, {i}});
  refused({many, {}}, "tensor m has 16385 boxes");  // could not be read back
  error_of(ExitCode::internal, [&] { save_checkpoint(checkpoints, {.step = 1}, {whole}, nullptr, {.rank = 0, .size = 2}); });
  error_of(ExitCode::internal, [&] { save_checkpoint(checkpoints, {.step = 1}, {whole}, nullptr, {.rank = 1, .size = 1}); });
}

TEST(Group, SpaceIsCheckedForAllRanksTogether) {
  const TempDir dir;
  const float unused = 0;
  const auto outcomes = save_together(2, [&](const SaveGroup& g) {
    const int64_t half = int64_t{1} << 29;
    return save_checkpoint(dir.path(), {.step = 2}, {{"model", "w", Dtype::f32, {half, 1 << 28}, &unused, Shape{2 * half, 1 << 28}, {g.rank * half, 0}}},
                           nullptr, g);
  });
  const auto line = common_error(ExitCode::checkpoint, outcomes);
  expect_contains(line, "1152921504");  // 2^60 bytes and the rest
  EXPECT_TRUE(listing(dir.path()).empty());
}

class GroupFailure : public ::testing::Test {
 protected:
  GroupFailure() { save_small(dir_.path(), 1, 1); }
  ~GroupFailure() override {
    EXPECT_EQ(listing(dir_.path()), (std::vector<std::string>{"LATEST", "step_0000000001"}));
    EXPECT_EQ(fill_of(dir_.path() / "step_0000000001"), 1.0f);
    save_together(3, [&](const SaveGroup& g) { return save_share(dir_.path(), 2, 2, g); });
    EXPECT_EQ(fill_of(dir_.path() / "step_0000000002"), 2.0f);
  }
  fs::path temporary() const { return dir_.path() / fmt::format("step_0000000002.tmp.{}", ::getpid()); }

  // A save of three ranks in which the fetch of those in `ranks` throws.
  template <class Exception>
  std::vector<Outcome> fetch_throws(const std::vector<int>& ranks, const Exception& thrown) {
    return save_together(3, [&](const SaveGroup& g) {
      const SmallState state(2);
      auto tensors = share_of(state, g.rank, 3);
      if (std::count(ranks.begin(), ranks.end(), g.rank) > 0) {
        tensors.back().data = nullptr;
        tensors.back().fetch = [&](const auto&) { throw thrown; };
      }
      return save_checkpoint(dir_.path(), {.step = 2, .keep_last = 1}, tensors, nullptr, g);
    });
  }

  TempDir dir_;
};

TEST_F(GroupFailure, ErrorOfAnyRankIsTheErrorOfAll) {
  for (const int rank : {0, 1, 2}) {
    const Error thrown(ExitCode::device, "the copy failed", "GPU 0", "look at it");
    EXPECT_EQ(common_error(ExitCode::device, fetch_throws({rank}, thrown)), fmt::format("GPU 0: the copy failed, rank {} on host node{} (look at it)", rank, rank));
  }
  EXPECT_EQ(common_error(ExitCode::checkpoint, fetch_throws({1, 2}, Error(ExitCode::checkpoint, "no"))), "no, rank 1 on host node1, and 1 more");
  EXPECT_EQ(common_error(ExitCode::internal, fetch_throws({2}, std::runtime_error("odd"))), "saving failed: odd, rank 2 on host node2");
  EXPECT_EQ(common_error(ExitCode::internal, fetch_throws({1}, 5)), "saving failed for an unknown reason, rank 1 on host node1");
}

// /dev/full gives a genuine ENOSPC: see crash_test.cpp.
TEST_F(GroupFailure, FullDiskOfAnyRank) {
  for (const std::string file : {"model-r0000-00001.safetensors", "model-r0002-00001.safetensors", "manifest.json.tmp."}) {
    SCOPED_TRACE(file);
    const std::string target = file.ends_with('.') ? file + std::to_string(::getpid()) : file;
    const auto outcomes = save_together(3, [&](const SaveGroup& g) {
      return save_share(dir_.path(), 2, 2, g, 1, [&](SavePhase phase) {
        if (phase == SavePhase::temporary_made) fs::create_symlink("/dev/full", temporary() / target);
      });
    });
    const auto line = common_error(ExitCode::checkpoint, outcomes);
    expect_contains(line, target);
    expect_contains(line, "No space left on device");
    if (file.find("-r0002-") != std::string::npos) expect_contains(line, "rank 2 on host node2");
  }
}

TEST_F(GroupFailure, FilesThatRankZeroDoesNotFindAreNotCommitted) {
  for (const bool cut : {false, true}) {
    const auto outcomes = save_together(3, [&](const SaveGroup& g) {
      return save_share(dir_.path(), 2, 2, g, 1, [&](SavePhase phase) {
        const fs::path shard = temporary() / "model-r0002-00001.safetensors";
        if (g.rank != 2 || phase != SavePhase::shard_written) return;
        if (cut) {
          fs::resize_file(shard, 100);
        } else {
          fs::remove(shard);
        }
      });
    });
    const auto line = common_error(ExitCode::checkpoint, outcomes);
    expect_contains(line, "model-r0002-00001.safetensors");
    expect_contains(line, cut ? "100 are there" : "No such file");
  }
}

TEST_F(GroupFailure, RankThatDoesNotSeeTheDirectoryIsNamed) {
  const TempDir elsewhere, same_names;
  // A directory of the same name, of another host's disk.
  const fs::path twin = same_names.path() / temporary().filename();
  fs::create_directory(twin);
  spill(twin / "nonce", "0123456789abcdef0123456789abcdef");
  const auto outcomes = save_together(4, [&](const SaveGroup& g) {
    const fs::path& dir = g.rank == 2 ? elsewhere.path() / "checkpoints" : g.rank == 3 ? same_names.path() : dir_.path();
    return save_share(dir, 2, 2, g);
  });
  const auto line = common_error(ExitCode::checkpoint, outcomes);
  EXPECT_EQ(line, fmt::format("{}: rank 0 on host node0 made this directory, rank 2 on host node2 does not see it as {}, and 1 more (a job over several hosts "
                              "needs a file system they share: choose a run directory on one)",
                              temporary().string(), (elsewhere.path() / "checkpoints" / temporary().filename()).string()));
  EXPECT_TRUE(listing(elsewhere.path()).empty());
  EXPECT_EQ(listing(twin), std::vector<std::string>{"nonce"});
}

TEST(Group, DirectoryThatRanksDoNotShareIsNoticedAtTheStart) {
  const TempDir dir, elsewhere;
  fs::create_directory(dir.path() / "there");
  for (const char* run : {"there", "runs/new", "runs/new/"}) {
    for (const int stranger : {-1, 1}) {
      const auto outcomes = save_together(3, [&](const SaveGroup& g) {
        check_shared_directory((g.rank == stranger ? elsewhere.path() : dir.path()) / run, g);
        return dir.path();
      });
      if (stranger < 0) {
        for (const Outcome& o : outcomes) EXPECT_EQ(o.line, "") << run;
      } else {
        const auto line = common_error(ExitCode::checkpoint, outcomes);
        expect_contains(line, "rank 0 on host node0 made this directory, rank 1 on host node1 does not see it as " + elsewhere.path().string());
        expect_contains(line, "needs a file system they share");
      }
      EXPECT_EQ(listing(dir.path()), std::vector<std::string>{"there"}) << run;
      EXPECT_TRUE(listing(dir.path() / "there").empty());
      EXPECT_TRUE(listing(elsewhere.path()).empty());
    }
  }
}

TEST_F(GroupFailure, LostRankEndsTheSave) {
  for (int fatal = 0; fatal < 4; ++fatal) {
    const auto outcomes = save_together(3, [&](SaveGroup g) {
      g.exchange = [&, calls = 0, inner = g.exchange](const std::string& mine) mutable {
        auto texts = inner(mine);
        if (calls++ == fatal) throw Error(ExitCode::device, "rank 1 is lost");
        return texts;
      };
      return save_share(dir_.path(), 2, 2, g);
    });
    EXPECT_EQ(common_error(ExitCode::device, outcomes), "rank 1 is lost") << fatal;
    EXPECT_EQ(listing(dir_.path()), (std::vector<std::string>{"LATEST", "step_0000000001"})) << fatal;
  }
}

// kill -9 of either of two ranks, at every point of what it does and around every exchange.
TEST(GroupCrash, AnyRankKilledAtAnyPoint) {
  for (const int victim : {0, 1}) {
    int n = 0;
    for (bool killed = true; killed; ++n) {
      SCOPED_TRACE(fmt::format("rank {} at point {}", victim, n));
      const TempDir dir;
      const bool same_step = n % 2 == 1;  // the new save replaces the only one there is
      save_small(dir.path(), same_step ? 2 : 1, 1);
      const auto statuses = save_by_processes(2, [&](SaveGroup g) {
        int left = g.rank == victim ? n : 1000;
        const auto point = [&] {
          if (left-- == 0) ::raise(SIGKILL);
        };
        g.exchange = [&, inner = g.exchange](const std::string& mine) {
          point();
          auto texts = inner(mine);
          point();
          return texts;
        };
        save_share(dir.path(), 2, 2, g, 1, [&](SavePhase) { point(); });
      });
      killed = WIFSIGNALED(statuses[static_cast<size_t>(victim)]);
      const int other = statuses[static_cast<size_t>(1 - victim)];
      EXPECT_TRUE(WIFEXITED(other) && (WEXITSTATUS(other) == 0 || (killed && WEXITSTATUS(other) == static_cast<int>(ExitCode::device)))) << other;
      std::vector<std::string> warnings;
      const auto latest = latest_checkpoint(dir.path(), warnings);
      ASSERT_TRUE(latest);
      const float fill = fill_of(*latest);
      EXPECT_TRUE(fill == 2 || (killed && fill == 1)) << fill;
      save_together(2, [&](const SaveGroup& g) { return save_share(dir.path(), 3, 3, g, 1); });
      EXPECT_EQ(listing(dir.path()), (std::vector<std::string>{"LATEST", "step_0000000003"}));
      EXPECT_EQ(fill_of(dir.path() / "step_0000000003"), 3.0f);
    }
    EXPECT_GE(n, victim == 0 ? 19 : 12);
  }
}

}  // namespace
}  // namespace octet
