// Step benchmark: recipes against BF16, and BF16 against plain sgemm at the step's own shapes, alternating in one process.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "comm/mesh.h"
#include "config/run_config.h"
#include "data/loader.h"

namespace octet {

struct StepTiming {
  std::string recipe;
  std::vector<double> ms;     // one a round
  double median_ms = 0, min_ms = 0, max_ms = 0;
  double ratio_to_bf16 = 0;   // median of the per-round ratios
};

struct StepBench {
  int64_t threads = 0, tokens = 0;
  double gemm_gflop = 0;            // multiplications and additions in the linear layers and the head, forward and backward
  std::vector<double> sgemm_ms;     // OpenBLAS with all threads on FP32 operands of the step's shapes, back to back; one a round
  double sgemm_median_ms = 0;
  double bf16_share = 0;            // median over rounds of sgemm time / BF16 step time
  std::vector<StepTiming> steps;    // bf16 first
};

// Milliseconds of a clock that only goes forward.
double now_ms();
double median(std::vector<double> v);
// A step's worth of random tokens, a function of the seed; every token has a label.
data::StepBatch random_batch(const RunConfig& config);
// This rank's micro-batches of a step: the data-parallel ranks take them in turn, as the loader does.
data::StepBatch own_part(const data::StepBatch& whole, const Layout& layout);

// Behind a recipe's name: every step gathers FP8 health statistics.
inline constexpr std::string_view with_statistics = "+stats";
// The recipe that a name times.
inline std::string timed_recipe(const std::string& name) { return name.ends_with(with_statistics) ? name.substr(0, name.size() - with_statistics.size()) : name; }

// config: validated; its data section is not used (random tokens). recipes: besides bf16, e.g. "blockwise", "blockwise+stats".
StepBench bench_step(const RunConfig& config, const std::vector<std::string>& recipes, int rounds);

}  // namespace octet
