#include "train/bench_comm.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "comm/agree.h"
#include "ops/reduce.h"
#include "train/bench_step.h"
#include "train/device_groups.h"
#include "train/job.h"

namespace octet {
namespace {

struct Payload {
  const char* operation;
  Dtype dtype;
};
// Gradients, weights and activations as training moves them; u8 are FP8 codes.
constexpr Payload payloads[] = {{"all_reduce", Dtype::f32},      {"all_reduce", Dtype::bf16}, {"reduce_scatter", Dtype::f32},
                                {"reduce_scatter", Dtype::bf16}, {"all_gather", Dtype::bf16}, {"all_gather", Dtype::u8}};

Comm::Ticket start(Comm& group, const std::string& operation, const Tensor& x) {
  if (operation == "all_reduce") return group.all_reduce(x, Reduce::sum);
  const Pieces pieces = even_pieces(x.elements(), group.size());
  return operation == "reduce_scatter" ? group.reduce_scatter(x, pieces) : group.all_gather(x, pieces);
}

}  // namespace

CommBench bench_comm(const RunConfig& config, const std::vector<int64_t>& bytes, int rounds, World& world, Comm& all) {
  const DeviceKind kind = device_kind(config.run.device);
  std::optional<Machine> made;
  agree(&all, world, [&] { made.emplace(Machine::Options{kind, static_cast<int>(config.run.threads), GemmMath::blas, false, world.local_rank()}); });
  Machine& machine = *made;
  std::unique_ptr<Comm> group = world.group("bench", world.everyone());
  if (kind == DeviceKind::cuda) {
    check_gpus(config, world, all, machine);
    group = device_groups(config, world, machine)(std::move(group));
  }
  world.set_deadline(World::Options().deadline_s);
  group->set_deadline(World::Options().deadline_s);
  const auto largest = static_cast<size_t>(*std::max_element(bytes.begin(), bytes.end()));
  Arena memory = machine.arena(largest), scratch;
  const Tensor whole = memory.alloc(Dtype::u8, {static_cast<int64_t>(largest)});
  Ctx ctx = machine.context(scratch);
  ops::zero(ctx, whole);

  CommBench bench{machine.name(), kind == DeviceKind::cuda && uses_nccl(config) ? "NCCL" : "MPI", world.size(), {}};
  const auto time_ms = [&](const std::string& operation, const Tensor& x, int64_t count) {   // of the slowest rank
    barrier(all);
    const double begin = now_ms();
    Comm::Ticket last = 0;
    for (int64_t i = 0; i < count; ++i) last = start(*group, operation, x);
    group->wait(last);
    machine.synchronize();
    constexpr double ns_per_ms = 1e6;
    return static_cast<double>(max_of(all, std::llround((now_ms() - begin) * ns_per_ms))) / ns_per_ms / static_cast<double>(count);
  };
  for (const Payload& p : payloads) {
    for (const int64_t size : bytes) {
      const Tensor x{whole.data, p.dtype, {size / static_cast<int64_t>(size_bytes(p.dtype))}};
      constexpr double round_ms = 20;
      time_ms(p.operation, x, 1);   // connects
      const auto count = static_cast<int64_t>(std::clamp(round_ms / time_ms(p.operation, x, 1), 1.0, 1000.0));
      std::vector<double> ms;
      for (int r = 0; r < rounds; ++r) ms.push_back(time_ms(p.operation, x, count));
      const double n = world.size(), share = (n - 1) / n * (std::string(p.operation) == "all_reduce" ? 2 : 1), middle = median(ms);
      bench.rows.push_back({p.operation, p.dtype, size, middle, *std::min_element(ms.begin(), ms.end()), *std::max_element(ms.begin(), ms.end()), share * static_cast<double>(size) / middle * 1e3});
    }
  }
  return bench;
}

}  // namespace octet
