// The local backend: every operation against plain loops, overlap, mismatched calls, failing and absent ranks.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "collective_checks.h"

using namespace octet;
using namespace octet::comm_checks;

namespace {

class LocalRanks : public ::testing::TestWithParam<int> {};

TEST_P(LocalRanks, every_operation_has_the_bits_of_a_plain_loop) {
  std::atomic<int> ran{0};
  run_local_ranks(GetParam(), [&](World& world) {
    EXPECT_EQ(world.size(), GetParam());
    EXPECT_EQ(world.local_rank(), world.rank());
    EXPECT_EQ(world.hosts().size(), static_cast<size_t>(GetParam()));
    check_world(world, false);
    ++ran;
  });
  EXPECT_EQ(ran, GetParam());
}

TEST_P(LocalRanks, operations_in_flight_with_a_delay) {
  run_local_ranks(GetParam(), check_in_flight, 0.001);
}

INSTANTIATE_TEST_SUITE_P(ranks, LocalRanks, ::testing::Values(1, 2, 3, 4, 5));

double seconds_since(std::chrono::steady_clock::time_point t) { return std::chrono::duration<double>(std::chrono::steady_clock::now() - t).count(); }

TEST(Local, an_operation_overlaps_with_the_callers_work) {
  double best = 1, shortest = 1;
  for (int attempt = 0; attempt < 3; ++attempt) {   // other programs may hold the cores
    run_local_ranks(2, [&](World& world) {
      const auto comm = world.group("dp", {0, 1});
      std::vector<float> x(100, 1);
      barrier(*comm);
      const auto begin = std::chrono::steady_clock::now();
      const Comm::Ticket ticket = comm->all_reduce(tensor(x), Reduce::sum);
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      comm->wait(ticket);
      if (world.rank() == 0) {
        best = std::min(best, seconds_since(begin));
        shortest = std::min(shortest, seconds_since(begin));
      }
      EXPECT_EQ(x[99], 2);
    }, 0.05);
  }
  EXPECT_LT(best, 0.08);
  EXPECT_GE(shortest, 0.05);
}

TEST(Local, groups_are_independent_and_one_groups_operations_follow_each_other) {
  run_local_ranks(2, [](World& world) {
    const auto a = world.group("a", {0, 1}), b = world.group("b", {0, 1});
    std::vector<float> x(8, 1), y(8, 1), z(8, 1);
    barrier(*a);
    barrier(*b);
    const auto begin = std::chrono::steady_clock::now();
    const auto first = a->all_reduce(tensor(x), Reduce::sum), second = a->all_reduce(tensor(y), Reduce::sum), other = b->all_reduce(tensor(z), Reduce::sum);
    b->wait(other);
    const double after_other = seconds_since(begin);
    a->wait(first);
    a->wait(second);
    const double after_both = seconds_since(begin);
    EXPECT_GE(after_other, 0.1);
    EXPECT_GE(after_both, 0.2);
    EXPECT_GE(after_both - after_other, 0.03);   // behind a's two it would have been the last
  }, 0.1);
}

TEST(Local, a_wait_too_few_is_seen_when_there_is_a_delay) {
  run_local_ranks(2, [](World& world) {
    const auto comm = world.group("dp", {0, 1});
    std::vector<float> x(4, 1);
    const auto ticket = comm->all_reduce(tensor(x), Reduce::sum);
    EXPECT_EQ(x[0], 1);
    comm->wait(ticket);
    EXPECT_EQ(x[0], 2);
  }, 0.03);
}

// Both ranks' calls: each throws Error(internal) that names both, or the one that came first learns it from wait().
void expect_mismatch(const std::function<Comm::Ticket(Comm&, int rank, std::vector<float>&)>& call, const std::string& first, const std::string& second) {
  std::atomic<int> refused{0};
  EXPECT_THROW(run_local_ranks(2, [&](World& world) {
    const auto comm = world.group("dp", {0, 1});
    std::vector<float> x(64);
    try {
      comm->wait(call(*comm, world.rank(), x));
    } catch (const Error& e) {
      EXPECT_EQ(e.code, ExitCode::internal) << e.what();
      for (const std::string& part : {first, second, std::string("group dp"), std::string("rank 0"), std::string("rank 1"), std::string("operation 1")}) {
        EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
      }
      ++refused;
      throw;
    }
  }), Error);
  EXPECT_GE(refused, 1);
}

TEST(Local, mismatched_calls_are_errors_that_name_both) {
  expect_mismatch([](Comm& c, int rank, auto& x) { return rank ? c.broadcast(tensor(x), 0) : c.all_reduce(tensor(x), Reduce::sum); }, "broadcast", "all_reduce sum");
  expect_mismatch([](Comm& c, int rank, auto& x) { return c.all_reduce({x.data(), Dtype::f32, {rank ? 64 : 63}}, Reduce::max); }, "64 f32", "63 f32");
  expect_mismatch([](Comm& c, int rank, auto& x) { return c.all_reduce({x.data(), rank ? Dtype::i64 : Dtype::f64, {32}}, Reduce::max); }, "32 i64", "32 f64");
  expect_mismatch([](Comm& c, int rank, auto& x) { return c.all_reduce(tensor(x), rank ? Reduce::max : Reduce::sum); }, "max", "sum");
  expect_mismatch([](Comm& c, int rank, auto& x) { return c.reduce_scatter(tensor(x), Pieces{{0, 10 + rank, 64}}); }, "reduce_scatter", "pieces");
  expect_mismatch([](Comm& c, int rank, auto& x) { return c.broadcast(tensor(x), rank); }, "from rank 0", "from rank 1");
  // Lists of the same bytes, cut into other tensors.
  const auto two = [](auto& x, int64_t front) { return std::vector<Tensor>{{x.data(), Dtype::f32, {front}}, {x.data() + front, Dtype::f32, {64 - front}}}; };
  expect_mismatch([&](Comm& c, int rank, auto& x) { return rank ? c.all_reduce(two(x, 20), Reduce::sum) : c.all_reduce(tensor(x), Reduce::sum); }, "sum of 2 tensors, 64 f32 (256 bytes)",
                  "sum of 64 f32 (256 bytes)");
  expect_mismatch([&](Comm& c, int rank, auto& x) { return c.all_reduce(two(x, 20 + rank), Reduce::sum); }, "sum of 2 tensors, 64 f32 (256 bytes)", "tensors or pieces differ");
}

TEST(Local, senseless_calls_are_refused) {
  run_local_ranks(2, [](World& world) {
    EXPECT_THROW(world.group("g", {1 - world.rank()}), Error);
    EXPECT_THROW(world.group("g", {1, 0}), Error);
    EXPECT_THROW(world.group("g", {0, 1, 2}), Error);
    const auto comm = world.group("dp", {0, 1});
    std::vector<float> x(64);
    EXPECT_THROW(comm->all_reduce({x.data(), Dtype::bf16, {64}}, Reduce::max), Error);
    EXPECT_THROW(comm->all_reduce({x.data(), Dtype::u8, {64}}, Reduce::sum), Error);
    EXPECT_THROW(comm->reduce_scatter({x.data(), Dtype::f64, {8}}, Pieces{{0, 4, 8}}), Error);
    EXPECT_THROW(comm->all_gather(tensor(x), Pieces{{0, 64}}), Error);
    EXPECT_THROW(comm->all_gather(tensor(x), Pieces{{0, 65, 64}}), Error);
    EXPECT_THROW(comm->all_gather(tensor(x), Pieces{{0, 4, 63}}), Error);
    EXPECT_THROW(comm->all_gather({nullptr, Dtype::f32, {8}}, Pieces{{0, 4, 8}}), Error);
    EXPECT_THROW(comm->broadcast(tensor(x), 2), Error);
    EXPECT_THROW(comm->all_gather(std::vector<TensorInPieces>{}), Error);
    EXPECT_THROW(comm->all_reduce({tensor(x), Tensor{x.data(), Dtype::i64, {2}}}, Reduce::sum), Error);
    EXPECT_THROW(comm->all_gather({{tensor(x), Pieces{{0, 4, 64}}}, {tensor(x), Pieces{{0, 4, 63}}}}), Error);
    EXPECT_THROW(comm->reduce_scatter({{tensor(x), Pieces{{0, 4, 64}}}, {{nullptr, Dtype::f32, {8}}, Pieces{{0, 4, 8}}}}), Error);
    EXPECT_THROW(comm->wait(1), Error);
    barrier(*comm);   // the group is as it was
  });
}

TEST(Local, a_throwing_rank_ends_the_others_waits) {
  std::atomic<int> ended{0};
  const auto begin = std::chrono::steady_clock::now();
  try {
    run_local_ranks(3, [&](World& world) {
      const auto comm = world.group("dp", {0, 1, 2});
      barrier(*comm);
      if (world.rank() == 1) throw Error(ExitCode::config, "a wrong key");
      try {
        barrier(*comm);
      } catch (const Error& e) {
        EXPECT_EQ(e.code, ExitCode::device);
        EXPECT_NE(std::string(e.what()).find("rank 1 ended: a wrong key"), std::string::npos) << e.what();
        ++ended;
        throw;
      }
    });
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& e) {
    EXPECT_EQ(e.code, ExitCode::config);
    EXPECT_STREQ(e.what(), "a wrong key");
  }
  EXPECT_EQ(ended, 2);
  EXPECT_LT(seconds_since(begin), 5);
}

TEST(Local, poison_ends_the_others_waits) {
  std::atomic<int> ended{0};
  EXPECT_THROW(run_local_ranks(2, [&](World& world) {
    const auto comm = world.group("dp", {0, 1});
    if (world.rank() == 0) return world.poison(ExitCode::data, "a torn file");
    try {
      barrier(*comm);
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("rank 0 ended: a torn file"), std::string::npos) << e.what();
      ++ended;
      throw;
    }
  }), Error);
  EXPECT_EQ(ended, 1);
}

TEST(Local, a_deadline_names_rank_group_operation_and_whom_it_waits_for) {
  World::Options options;
  options.deadline_s = 100;
  std::atomic<bool> late{false};
  try {
    run_local_ranks(3, [&](World& world) {
      const auto comm = world.group("dp", {0, 1, 2});
      barrier(*comm);
      world.set_deadline(0.2);
      std::vector<float> x(10);
      if (world.rank() == 2) {
        while (!late) std::this_thread::sleep_for(std::chrono::milliseconds(5));
        return;
      }
      const auto begin = std::chrono::steady_clock::now();
      try {
        comm->wait(comm->all_reduce(tensor(x), Reduce::sum));
      } catch (const Error&) {
        EXPECT_LT(seconds_since(begin), 5);
        late = true;
        throw;
      }
    }, 0, options);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& e) {
    EXPECT_EQ(e.code, ExitCode::deadline);
    for (const char* part : {"group dp", "all_reduce sum of 10 f32 (40 bytes)", "operation 2", "0.2 s", "not started by rank 2"}) {
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
    }
  }
}

TEST(Local, bytes_are_counted_by_operation_and_type) {
  run_local_ranks(4, [](World& world) {
    const auto comm = world.group("dp", {0, 1, 2, 3});
    std::vector<uint8_t> bytes(1000);
    std::vector<uint16_t> halves(1000);
    std::vector<float> x(100), large(40000);
    comm->wait(comm->all_gather(tensor(bytes), even_pieces(1000, 4)));
    comm->wait(comm->all_gather(tensor(halves), even_pieces(1000, 4)));
    comm->wait(comm->all_gather(tensor(halves), Pieces{{0, 1000, 1000, 1000, 1000}}));
    comm->wait(comm->reduce_scatter(tensor(x), Pieces{{0, 10, 30, 60, 100}}));
    comm->wait(comm->all_reduce(tensor(x), Reduce::sum));
    comm->wait(comm->all_reduce(tensor(large), Reduce::sum));
    comm->wait(comm->broadcast(tensor(x), 2));
    comm->wait(comm->broadcast(tensor(large), 2));
    const TrafficTable t = comm->traffic();
    EXPECT_EQ(t.at({"all_gather", Dtype::u8}).bytes, 250 * 3);
    EXPECT_EQ(t.at({"all_gather", Dtype::bf16}).calls, 2);
    EXPECT_EQ(t.at({"all_gather", Dtype::bf16}).bytes, 500 * 3 + (world.rank() == 0 ? 2000 * 3 : 0));
    EXPECT_EQ(t.at({"reduce_scatter", Dtype::f32}).bytes, 4 * (90 - 10 * world.rank()));
    EXPECT_EQ(t.at({"all_reduce", Dtype::f32}).bytes, 400 * 3 + 2 * 160000 * 3 / 4);
    EXPECT_EQ(t.at({"broadcast", Dtype::f32}).bytes, (world.rank() == 2 ? 400 * 3 + 120000 : 0) + 40000 * 3);
    EXPECT_EQ(t.size(), 5u);
  });
}

TEST(Local, a_list_is_one_operation_of_all_its_bytes) {
  run_local_ranks(4, [](World& world) {
    const auto comm = world.group("dp", {0, 1, 2, 3});
    std::vector<float> a(100), b(20), large(39999);
    const Comm::Ticket first = comm->all_gather({{tensor(a), Pieces{{0, 10, 30, 60, 100}}}, {{nullptr, Dtype::f32, {0}}, even_pieces(0, 4)}, {tensor(b), even_pieces(20, 4)}});
    EXPECT_EQ(comm->reduce_scatter({{tensor(a), Pieces{{0, 10, 30, 60, 100}}}, {tensor(b), even_pieces(20, 4)}}), first + 1);
    comm->wait(comm->all_reduce({tensor(a), tensor(b)}, Reduce::sum));
    comm->wait(comm->all_reduce({tensor(large), tensor(a), tensor(b)}, Reduce::sum));   // even pieces of 40119 elements
    const TrafficTable t = comm->traffic();
    const int64_t own = 10 * (world.rank() + 1) + 5, even = 40119 / 4 + (world.rank() < 3 ? 1 : 0);
    EXPECT_EQ(t.at({"all_gather", Dtype::f32}).calls, 1);
    EXPECT_EQ(t.at({"all_gather", Dtype::f32}).bytes, 4 * own * 3);
    EXPECT_EQ(t.at({"reduce_scatter", Dtype::f32}).calls, 1);
    EXPECT_EQ(t.at({"reduce_scatter", Dtype::f32}).bytes, 4 * (120 - own));
    EXPECT_EQ(t.at({"all_reduce", Dtype::f32}).calls, 2);
    EXPECT_EQ(t.at({"all_reduce", Dtype::f32}).bytes, 4 * (120 * 3 + 40119 - even + even * 3));
  });
}

TEST(Local, even_pieces_differ_by_at_most_one) {
  EXPECT_EQ(even_pieces(10, 4).begin, (std::vector<int64_t>{0, 3, 6, 8, 10}));
  EXPECT_EQ(even_pieces(2, 3).begin, (std::vector<int64_t>{0, 1, 2, 2}));
  EXPECT_EQ(even_pieces(0, 2).begin, (std::vector<int64_t>{0, 0, 0}));
  EXPECT_EQ(even_pieces(int64_t{1} << 61, 3).begin.back(), int64_t{1} << 61);
}

}  // namespace
