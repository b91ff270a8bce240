#include "train/bench_device.h"

#include <algorithm>
#include <optional>

#include "comm/agree.h"
#include "config/config_io.h"
#include "config/model_size.h"
#include "train/bench_step.h"
#include "train/engine.h"
#include "train/job.h"

namespace octet {
namespace {

DeviceStepTiming time_steps(const RunConfig& config, const data::StepBatch& whole, int rounds, bool trace, World& world, Mesh& mesh, Engine& engine) {
  constexpr int warm_up = 2;
  DeviceStepTiming t;
  t.recipe = config.precision.recipe;
  if (!mesh.alone()) join_devices(config, world, mesh, engine.machine());
  engine.join_ranks();
  const data::StepBatch batch = own_part(whole, mesh.layout());
  t.timed_products = engine.prepare_products({}).timed;
  t.planned_bytes = engine.memory().total();
  mesh.set_deadline(World::Options().deadline_s);
  for (int s = 0; s < warm_up + rounds; ++s) {
    const double begin = now_ms();
    t.loss = engine.step(batch, s).loss;
    engine.machine().synchronize();
    if (s >= warm_up) t.ms.push_back(now_ms() - begin);
  }
  t.used_bytes = engine.machine().memory_use().used;
  t.device = engine.machine().name();
  t.median_ms = median(t.ms);
  t.min_ms = *std::min_element(t.ms.begin(), t.ms.end());
  t.max_ms = *std::max_element(t.ms.begin(), t.ms.end());
  t.tokens_per_s = static_cast<double>(config.batch.global * config.data.seq_len) / mesh.size() / t.median_ms * 1e3;
  if (const double peak = engine.machine().peak_flops(); peak > 0) t.mfu = t.tokens_per_s * flops_per_token(config.model, config.data.seq_len) / peak;
  if (trace) {
    TraceHooks hooks;
    hooks.settle = [&] { engine.machine().synchronize(); };
    Tracer tracer(hooks);
    engine.set_tracer(&tracer);
    engine.step(batch, warm_up + rounds);
    t.trace = tracer.totals();
  }
  return t;
}

DeviceStepTiming time_recipe(const RunConfig& config, const data::StepBatch& whole, int rounds, bool trace, World& world, Comm* all) {
  world.set_deadline(startup_deadline_s);
  Mesh mesh(config, world);
  std::optional<Engine> engine;
  agree(all, world, [&] { engine.emplace(config, Engine::Memory::plain, std::string(), &mesh); });
  try {
    return time_steps(config, whole, rounds, trace, world, mesh, *engine);
  } catch (...) {
    if (mesh.alone()) throw;
    end_rank(world);   // operations write to the engine's memory
  }
}

}  // namespace

DeviceBench bench_step_on_device(const RunConfig& config, const std::vector<std::string>& recipes, int rounds, bool trace, World& world, Comm* all,
                                 const std::function<void(const DeviceStepTiming&)>& progress) {
  DeviceBench bench;
  bench.tokens = config.batch.global * config.data.seq_len;
  bench.flops_per_token = flops_per_token(config.model, config.data.seq_len);
  if (world.size() > 1) bench.layout = layout_text(layout_of(config, world.rank(), world.size()));
  const data::StepBatch batch = random_batch(config);
  for (const std::string& recipe : recipes) {
    RunConfig c = config;
    c.precision.recipe = recipe;
    validate(c);
    bench.steps.push_back(time_recipe(c, batch, rounds, trace, world, all));
    bench.device = bench.steps.front().device;
    progress(bench.steps.back());
  }
  return bench;
}

}  // namespace octet
