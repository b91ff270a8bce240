// ThreadPool: each task once, exceptions, reuse, thread counts.
#include "core/thread_pool.h"

#include <gtest/gtest.h>

#include <stdexcept>

using namespace octet;

namespace {

class Pool : public ::testing::TestWithParam<int> {};

TEST_P(Pool, runs_each_task_once_with_a_worker_of_its_own) {
  ThreadPool pool(GetParam());
  EXPECT_EQ(pool.threads(), GetParam());
  for (int64_t count : {0, 1, 2, 3, 64, 1000}) {
    std::vector<std::atomic<int>> runs(static_cast<size_t>(count)), busy(static_cast<size_t>(pool.threads()));
    std::atomic<int> shared{0}, out_of_range{0};
    pool.run(count, [&](int64_t task, int worker) {
      if (task < 0 || task >= count || worker < 0 || worker >= pool.threads()) {
        ++out_of_range;
        return;
      }
      if (busy[static_cast<size_t>(worker)].fetch_add(1) != 0) ++shared;  // per-worker scratch would be used twice at once
      ++runs[static_cast<size_t>(task)];
      busy[static_cast<size_t>(worker)].fetch_sub(1);
    });
    EXPECT_EQ(out_of_range, 0);
    EXPECT_EQ(shared, 0);
    for (const auto& r : runs) EXPECT_EQ(r, 1);
  }
}

TEST_P(Pool, results_are_visible_to_the_caller_in_every_round) {
  ThreadPool pool(GetParam());
  for (int round = 0; round < 500; ++round) {
    std::vector<int> out(17, -1);
    pool.run(17, [&](int64_t task, int) { out[static_cast<size_t>(task)] = round + static_cast<int>(task); });
    for (int i = 0; i < 17; ++i) ASSERT_EQ(out[static_cast<size_t>(i)], round + i);
  }
}

TEST_P(Pool, rethrows_an_exception_and_stays_usable) {
  ThreadPool pool(GetParam());
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> ran{0};
    try {
      pool.run(100, [&](int64_t task, int) {
        ++ran;
        if (task == 3) throw std::runtime_error("task three");
      });
      FAIL() << "the exception was swallowed";
    } catch (const std::runtime_error& e) {
      EXPECT_STREQ(e.what(), "task three");
    }
    EXPECT_GE(ran, 1);
    std::atomic<int> after{0};
    pool.run(100, [&](int64_t, int) { ++after; });
    EXPECT_EQ(after, 100);
  }
}

TEST_P(Pool, of_several_exceptions_one_arrives) {
  ThreadPool pool(GetParam());
  for (int round = 0; round < 20; ++round) {
    EXPECT_THROW(pool.run(50, [](int64_t task, int) { throw static_cast<int>(task); }), int);
  }
}

TEST_P(Pool, tiles_cover_the_range_without_overlap) {
  ThreadPool pool(GetParam());
  for (int64_t n : {0, 1, 31, 32, 33, 100}) {
    std::vector<std::atomic<int>> seen(static_cast<size_t>(n));
    std::atomic<int> oversized{0};
    parallel_tiles(pool, n, 32, [&](int64_t begin, int64_t end, int) {
      if (begin % 32 != 0 || end - begin > 32 || end <= begin) ++oversized;
      for (int64_t i = begin; i < end; ++i) ++seen[static_cast<size_t>(i)];
    });
    EXPECT_EQ(oversized, 0);
    for (const auto& s : seen) EXPECT_EQ(s, 1);
  }
}

INSTANTIATE_TEST_SUITE_P(threads, Pool, ::testing::Values(1, 2, 4));

TEST(pool, takes_the_usable_cores_by_default) {
  EXPECT_GE(usable_cores(), 1);
  EXPECT_EQ(ThreadPool().threads(), usable_cores());
}

}  // namespace
