// Step benchmark on a GPU, or on those of a job's ranks: whole training steps of one recipe after another, since a model may fill the card; memory planned and used; optionally one more
// step with a trace that waits for the device behind each span.
#pragma once
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "comm/world.h"
#include "config/run_config.h"
#include "core/trace.h"

namespace octet {

struct DeviceStepTiming {
  std::string recipe, device;
  std::vector<double> ms;                        // one a step, behind two of warm-up
  double median_ms = 0, min_ms = 0, max_ms = 0;
  double tokens_per_s = 0, mfu = 0;              // of each GPU, of the median; mfu against Machine::peak_flops, 0 when that is unknown
  double loss = 0;                               // of the last step
  size_t planned_bytes = 0, used_bytes = 0;      // device memory of this rank: MemoryPlan::total(), and what cudaMemGetInfo says is in use behind the last step
  int timed_products = 0;
  std::vector<Tracer::Total> trace;
};

struct DeviceBench {
  std::string device, layout;   // layout: of several ranks
  int64_t tokens = 0;
  double flops_per_token = 0;
  std::vector<DeviceStepTiming> steps;
};

// config: validated, and checked for the job (train/job.h); run.device a GPU. progress: called with each finished recipe. Called by all ranks of the world; `all`: their group, null of one rank.
DeviceBench bench_step_on_device(const RunConfig& config, const std::vector<std::string>& recipes, int rounds, bool trace, World& world, Comm* all,
                                 const std::function<void(const DeviceStepTiming&)>& progress);

}  // namespace octet
