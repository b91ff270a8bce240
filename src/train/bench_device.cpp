#include "train/bench_device.h"

#include <algorithm>

#include "config/config_io.h"
#include "config/model_size.h"
#include "train/bench_step.h"
#include "train/engine.h"

namespace octet {
namespace {

DeviceStepTiming time_recipe(const RunConfig& config, const data::StepBatch& batch, int rounds, bool trace) {
  constexpr int warm_up = 2;
  DeviceStepTiming t;
  t.recipe = config.precision.recipe;
  layout_of(config, 0, 1);   // one process: refuses what needs more
  Engine engine(config);
  t.timed_products = engine.prepare_products({}).timed;
  t.planned_bytes = engine.memory().total();
  for (int s = 0; s < warm_up + rounds; ++s) {
    const double begin = now_ms();
    t.loss = engine.step(batch, s).loss;
    engine.machine().synchronize();
    if (s >= warm_up) t.ms.push_back(now_ms() - begin);
  }
  t.used_bytes = engine.machine().memory_use().used;
  t.median_ms = median(t.ms);
  t.min_ms = *std::min_element(t.ms.begin(), t.ms.end());
  t.max_ms = *std::max_element(t.ms.begin(), t.ms.end());
  t.tokens_per_s = static_cast<double>(config.batch.global * config.data.seq_len) / t.median_ms * 1e3;
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

}  // namespace

DeviceBench bench_step_on_device(const RunConfig& config, const std::vector<std::string>& recipes, int rounds, bool trace,
                                 const std::function<void(const DeviceStepTiming&)>& progress) {
  DeviceBench bench;
  bench.tokens = config.batch.global * config.data.seq_len;
  bench.flops_per_token = flops_per_token(config.model, config.data.seq_len);
  bench.device = Machine({DeviceKind::cuda, 1}).name();
  const data::StepBatch batch = random_batch(config);
  for (const std::string& recipe : recipes) {
    RunConfig c = config;
    c.precision.recipe = recipe;
    validate(c);
    bench.steps.push_back(time_recipe(c, batch, rounds, trace));
    progress(bench.steps.back());
  }
  return bench;
}

}  // namespace octet
