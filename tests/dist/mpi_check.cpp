// mpi_check MODE [ARGUMENT]: what tests/cli/test_mpirun.py starts under mpirun. Prints nothing when all is well; an error is one line on stderr and its exit code, as in app/main.cpp.
//   operations            every operation against plain loops (those that the local backend passes too), and the bytes that Comm counts
//   traffic FILE          a known set of operations; each rank appends "rank bytes-of-tensors bytes-of-greetings" to FILE.<rank>
//   messages FILE         an all-gather and an all-reduce of 50 small tensors, in a group of all; each rank writes to FILE.<rank> as above
//   train FILE [SECONDS]  sums again and again, as a training run would; each rank's process number is in FILE.<rank>. Deadline: 3 s, or SECONDS
//   throw                 rank 1 throws Error(config) while the others wait
//   absent                the last rank does not take part in an operation (deadline 1 s)
//   disorder              two ranks make different groups
//   mismatch              two ranks call an operation with different sizes
//   alone                 prints rank and size
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "../unit/comm/collective_checks.h"

using namespace octet;
using namespace octet::comm_checks;

namespace {

void check_traffic(World& world) {
  const int n = world.size();
  const auto comm = world.group("dp", everyone(world));
  const auto expect_bytes = [&](const char* operation, Dtype dtype, int64_t bytes) {
    const TrafficTable table = comm->traffic();
    const auto found = table.find({operation, dtype});
    const int64_t counted = found == table.end() ? -1 : found->second.bytes;
    if (counted != bytes) throw std::runtime_error(fmt::format("rank {} of {}: {} of {} bytes counted, {} sent", world.rank(), n, operation, counted, bytes));
  };
  std::vector<uint8_t> bytes(static_cast<size_t>(1000 * n));
  std::vector<float> small(100), large(static_cast<size_t>(400000 * n));
  comm->wait(comm->all_gather(tensor(bytes), even_pieces(1000 * n, n)));
  expect_bytes("all_gather", Dtype::u8, 1000 * (n - 1));
  Pieces falling{{0}};   // rank r has r * 50000 elements, the last one the rest
  for (int r = 0; r < n; ++r) falling.begin.push_back(r == n - 1 ? 400000 * n : falling.begin.back() + 50000 * r);
  comm->wait(comm->reduce_scatter(tensor(large), falling));
  expect_bytes("reduce_scatter", Dtype::f32, 4 * (400000 * n - falling.count(world.rank())));
  comm->wait(comm->all_reduce(tensor(small), Reduce::sum));
  expect_bytes("all_reduce", Dtype::f32, 400 * (n - 1));
  comm->wait(comm->all_reduce(tensor(large), Reduce::sum));
  expect_bytes("all_reduce", Dtype::f32, 400 * (n - 1) + 2 * 1600000 * (n - 1));
  comm->wait(comm->broadcast(tensor(small), n - 1));
  expect_bytes("broadcast", Dtype::f32, world.rank() == n - 1 ? 400 * (n - 1) : 0);
  std::vector<double> a(1000), b(static_cast<size_t>(50000 * n));
  comm->wait(comm->all_reduce({tensor(a), tensor(b)}, Reduce::sum));
  const int64_t all = 1000 + 50000 * n, even = even_pieces(all, n).count(world.rank());
  expect_bytes("all_reduce", Dtype::f64, 8 * (all - even + even * (n - 1)));
}

// Writes what Comm says of these groups to a file, and what they sent to be made.
int report(const World& world, const std::string& file, const std::vector<const Comm*>& groups) {
  int64_t bytes = 0, greetings = 0;
  for (const Comm* comm : groups) {
    for (const auto& [what, t] : comm->traffic()) bytes += t.bytes;
    greetings += 64 * (comm->size() - 1);
  }
  std::ofstream(fmt::format("{}.{}", file, world.rank())) << world.rank() << ' ' << bytes << ' ' << greetings << '\n';
  return 0;
}

// The same operations as above and some groups; what Comm says of them.
int report_traffic(World& world, const std::string& file) {
  const auto whole = world.group("whole", everyone(world));
  std::vector<int> parity;
  for (int r = world.rank() % 2; r < world.size(); r += 2) parity.push_back(r);
  const auto half = world.group("half", parity);
  std::vector<float> x(300001);
  for (Comm* comm : {whole.get(), half.get()}) {
    comm->wait(comm->all_reduce(tensor(x), Reduce::sum));
    comm->wait(comm->reduce_scatter(tensor(x), even_pieces(300001, comm->size())));
    comm->wait(comm->all_gather(tensor(x), even_pieces(300001, comm->size())));
    comm->wait(comm->broadcast(tensor(x), 0));
    std::vector<float> y(70000), z(3);
    comm->wait(comm->reduce_scatter({{tensor(y), pieces(70000, comm->size(), 1)}, {tensor(x), even_pieces(300001, comm->size())}, {tensor(z), pieces(3, comm->size(), 3)}}));
    comm->wait(comm->all_gather({{tensor(y), pieces(70000, comm->size(), 2)}, {tensor(x), even_pieces(300001, comm->size())}}));
    comm->wait(comm->all_reduce({tensor(z), tensor(x), tensor(y)}, Reduce::max));
    exchange(*comm, std::string(static_cast<size_t>(100 * world.rank()), 'x'));
  }
  return report(world, file, {whole.get(), half.get()});
}

int report_messages(World& world, const std::string& file) {
  const auto all = world.group("all", everyone(world));
  std::vector<std::vector<float>> x(50, std::vector<float>(100));
  std::vector<TensorInPieces> in_pieces;
  std::vector<Tensor> whole;
  for (auto& t : x) {
    in_pieces.push_back({tensor(t), even_pieces(100, all->size())});
    whole.push_back(tensor(t));
  }
  all->wait(all->all_gather(in_pieces));
  all->wait(all->all_reduce(whole, Reduce::sum));
  return report(world, file, {all.get()});
}

int train(World& world, const std::string& file) {
  std::ofstream(fmt::format("{}.{}", file, world.rank())) << ::getpid() << std::endl;
  const auto dp = world.group("dp", everyone(world));
  std::vector<float> x(200000), y(1000);
  for (int step = 0;; ++step) {
    const auto scattered = dp->reduce_scatter({{tensor(x), even_pieces(200000, dp->size())}, {tensor(y), even_pieces(1000, dp->size())}});
    dp->wait(scattered);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    dp->wait(dp->all_gather(tensor(x), even_pieces(200000, dp->size())));
    sum_of(*dp, step);
  }
}

int program(World& world, const std::string& mode, const std::string& argument) {
  if (mode == "operations") {
    check_world(world, world.size() <= 3);
    check_traffic(world);
    return 0;
  }
  if (mode == "traffic") return report_traffic(world, argument);
  if (mode == "messages") return report_messages(world, argument);
  if (mode == "train") return train(world, argument);
  if (mode == "alone") {
    fmt::print("rank {} of {}, local rank {} of {}, {} hosts\n", world.rank(), world.size(), world.local_rank(), world.local_size(), world.hosts().size());
    return 0;
  }
  if (mode == "disorder") {
    world.group(world.rank() == 0 ? "tp" : "dp", {0, 1});
    return 0;
  }
  const auto dp = world.group("dp", everyone(world));
  barrier(*dp);
  if (mode == "throw") {
    if (world.rank() == 1) throw Error(ExitCode::config, "batch.micro is wrong here", "config.json");
    barrier(*dp);
  } else if (mode == "absent") {
    if (world.rank() == world.size() - 1) std::this_thread::sleep_for(std::chrono::seconds(30));
    barrier(*dp);
  } else if (mode == "mismatch") {
    std::vector<float> x(100);
    dp->wait(dp->all_reduce({x.data(), Dtype::f32, {world.rank() == 0 ? 90 : 100}}, Reduce::sum));
  } else {
    throw Error(ExitCode::usage, "unknown mode " + mode);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "", argument = argc > 2 ? argv[2] : "";
  World::Options options;
  options.environment = [](const char* name) -> const char* { return std::getenv(name); };
  options.deadline_s = argc > 3 ? std::atof(argv[3]) : mode == "train" ? 3 : mode == "absent" ? 1 : 20;
  int code = 1;
  std::string message;
  try {
    return run_ranks(options, [&](World& world) { return program(world, mode, argument); });
  } catch (const Error& e) {
    code = static_cast<int>(e.code);
    message = e.what();
  } catch (const std::exception& e) {
    message = e.what();
  }
  fmt::print(stderr, "octet: error: {}\n", message);
  std::fflush(stderr);
  ::_exit(code);
}
