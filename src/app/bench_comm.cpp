#include "app/bench_comm.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "app/bench.h"
#include "app/cli.h"
#include "app/ranks.h"
#include "comm/agree.h"
#include "config/config_io.h"
#include "config/nearest.h"
#include "core/file_io.h"
#include "core/version.h"
#include "report/table.h"
#include "train/bench_comm.h"
#include "train/device_groups.h"

namespace octet {
namespace {

const char* const bench_comm_help =
    "Usage: mpirun -np N octet bench comm [--mib N...] [--rounds N] [--set PATH=VALUE...] [--json OUT]\n\n"
    "Times collective operations between all ranks, with nothing beside them: sums and gathers of FP32, BF16 and FP8 tensors on GPUs (NCCL, or staged\n"
    "through the host's memory) or CPUs (MPI). Bus GB/s: bytes that each rank's link moves, 2 (n - 1) / n of a sum's and (n - 1) / n of the others'.\n\n"
    "  --mib N...         sizes of tensors in MiB (default: 1 16 256)\n"
    "  --rounds N         rounds a figure is the median of (default 7)\n"
    "  --set PATH=VALUE   run.device, run.threads, parallel.backend, parallel.share_gpus\n"
    "  --json OUT         write every figure as JSON\n\n"
    "Examples\n  mpirun -np 8 octet bench comm\n  mpirun -np 2 octet bench comm --mib 64 --set parallel.backend=mpi\n";

void print(const CommBench& b) {
  Table t({{"operation", Table::Align::left}, {"type", Table::Align::left}, {"MiB"}, {"ms"}, {"min"}, {"max"}, {"bus GB/s"}});
  std::string before;
  for (const CommTiming& r : b.rows) {
    const std::string type(r.dtype == Dtype::u8 ? "fp8" : name(r.dtype)), both = r.operation + type;
    t.add_row({both == before ? "" : r.operation, both == before ? "" : type, fmt::format("{}", r.bytes >> 20), fmt::format("{:.3f}", r.ms), fmt::format("{:.3f}", r.min_ms),
               fmt::format("{:.3f}", r.max_ms), fmt::format("{:.1f}", r.bus_bytes_per_s * 1e-9)});
    before = both;
  }
  fmt::print("{} ranks, {}, {}\n{}", b.ranks, b.machine, b.backend, t.text());
}

nlohmann::json to_json(const CommBench& b) {
  nlohmann::json rows = nlohmann::json::array();
  for (const CommTiming& r : b.rows) {
    rows.push_back({{"operation", r.operation}, {"type", name(r.dtype)}, {"bytes", r.bytes}, {"ms", r.ms}, {"min_ms", r.min_ms}, {"max_ms", r.max_ms}, {"bus_bytes_per_s", r.bus_bytes_per_s}});
  }
  return {{"code_version", version}, {"bench", "comm"}, {"machine", b.machine}, {"backend", b.backend}, {"ranks", b.ranks}, {"rows", rows}};
}

struct CommRequest {
  RunConfig config;
  std::vector<int64_t> bytes;
  std::string json;
  int rounds = 7;
  bool help = false;
};

// Of a config that stands in for one, other values would change nothing.
void check_key(const std::string& expression) {
  const std::string key = expression.substr(0, expression.find('='));
  for (const char* known : {"run.device", "run.threads", "parallel.backend", "parallel.share_gpus"}) {
    if (key == known) return;
  }
  throw Error(ExitCode::config, fmt::format("{} does not matter to collective operations", printable(key)), "--set", "set run.device, run.threads, parallel.backend or parallel.share_gpus");
}

CommRequest read_comm_request(int argc, char** argv, const World& world) {
  const std::vector<cli::Flag> flags = {{"--mib", FlagTakes::values}, {"--rounds", FlagTakes::value}, {"--set", FlagTakes::values}, {"--json", FlagTakes::value}, {"--help", FlagTakes::nothing}};
  CommRequest r;
  ConfigTree tree;
  tree.values = stand_in_config(false);
  for (const cli::Given& g : cli::split_flags(argc - 1, argv + 1, flags)) {
    if (g.name == "--help") r.help = true;
    if (g.name == "--rounds") r.rounds = bench_count(g.values[0], g.name);
    if (g.name == "--json") r.json = g.values[0];
    for (const std::string& value : g.values) {
      if (g.name == "--mib") r.bytes.push_back(int64_t{bench_count(value, g.name)} << 20);
      if (g.name == "--set") {
        check_key(value);
        tree.set_expression(value);
      }
    }
  }
  if (r.help) return r;
  if (r.bytes.empty()) r.bytes = {int64_t{1} << 20, int64_t{16} << 20, int64_t{256} << 20};
  r.config = from_json(tree.values, tree.origins);
  validate(r.config);
  check_backend(r.config, device_kind(r.config.run.device) == DeviceKind::cuda);
  if (world.size() == 1) throw Error(ExitCode::usage, "octet bench comm needs several ranks", {}, "start it with mpirun -np N, N of 2 or more");
  return r;
}

}  // namespace

int run_bench_comm(int argc, char** argv) {
  return run_job([&](World& world) {
    const std::unique_ptr<Comm> all = all_ranks(world);
    CommRequest r;
    agree(all.get(), world, [&] { r = read_comm_request(argc, argv, world); });
    if (r.help) {
      if (world.rank() == 0) fmt::print("{}", bench_comm_help);
      return 0;
    }
    const CommBench bench = bench_comm(r.config, r.bytes, r.rounds, world, *all);
    agree(all.get(), world, [&] {
      if (world.rank() != 0) return;
      print(bench);
      if (!r.json.empty()) write_file_atomic(r.json, to_json(bench).dump(2) + "\n", ExitCode::checkpoint);
    });
    return 0;
  });
}

}  // namespace octet
