// Two ranks, each with a GPU of its own, through NCCL: the bits of the same ranks with their groups staged through the host. Two addends have one sum, whoever adds; sums of three and more
// are in NCCL's order, and are compared with a tolerance by scripts/parallel_matrix.sh --device cuda.
#include <cuda_runtime.h>

#include "parity/ranks.h"

namespace parity {
namespace {

struct Case {
  std::string recipe;
  int64_t zero;
  int tp;
  bool codes = false, one_kv_head = false;
};

class RanksThroughNccl : public testing::TestWithParam<Case> {};

TEST_P(RanksThroughNccl, have_the_bits_of_staged_ranks) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices < 2) GTEST_SKIP() << "needs two GPUs, there are " << devices;
  const auto& [recipe, zero, tp, codes, one_kv_head] = GetParam();
  RunConfig c = config(recipe, "cuda");
  c.model.num_attention_heads = c.model.num_key_value_heads = 4;   // so that no block of 128 is cut over tp
  if (one_kv_head) c.model.num_key_value_heads = 1;
  c.model.head_dim = 64;
  c.parallel.fp8_param_gather = codes && tp == 1;
  c.parallel.fp8_activation_gather = codes && tp > 1;
  c.model.intermediate_size = 256;
  c.model.vocab_pad_multiple = 128;
  c.run.gemm_choice = "heuristic";   // two runs are compared
  const auto through_nccl = [&](World& world, Engine& e) { return device_groups(c, world, e.machine()); };
  ASSERT_TRUE(uses_nccl(c));
  for (const bool overlap : {true, false}) {
    c.parallel.overlap = overlap;
    expect_same(run(c, 2, zero, tp, through_nccl), run(c, 2, zero, tp));
  }
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const char* recipe : {"fp32", "bf16", "tensorwise", "delayed", "rowwise", "blockwise"}) {
    for (const int64_t zero : {0, 1, 2, 3}) all.push_back({recipe, zero, 1});
    all.push_back({recipe, 1, 2});
    all.push_back({recipe, 1, 2, false, true});
  }
  for (const char* recipe : {"tensorwise", "blockwise"}) {
    for (const int64_t zero : {1, 3}) all.push_back({recipe, zero, 1, true});
    all.push_back({recipe, 1, 2, true});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Recipes, RanksThroughNccl, testing::ValuesIn(cases()),
                         [](const auto& which) { return which.param.recipe + (which.param.tp > 1 ? "_tp2" : "_zero" + std::to_string(which.param.zero)) + (which.param.codes ? "_codes" : "") + (which.param.one_kv_head ? "_kv1" : ""); });

}  // namespace
}  // namespace parity
