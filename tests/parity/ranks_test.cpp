// Ranks on one device, their groups staged through the host: training steps against those of one rank on it, and against as many ranks on CPUs.
#include "parity/ranks.h"

namespace parity {
namespace {

// FP8: as between a CPU and the device (engine_test.cpp).
class RanksOnOneDevice : public testing::TestWithParam<std::tuple<std::string, int64_t>> {};

TEST_P(RanksOnOneDevice, step_as_one_rank_and_as_ranks_on_cpus) {
  const auto& [recipe, zero] = GetParam();
  const double tolerance = recipe == "fp32" ? 1e-5 : 2e-3;
  const Outcome two = run(config(recipe, "cuda"), 2, zero);
  expect_near(two, run(config(recipe, "cuda"), 1, zero), tolerance);
  expect_near(two, run(config(recipe, "cpu"), 2, zero), tolerance);
}

// Two ranks that share each matrix, with sequence parallelism: gathers, sums and exchanged maxima between kernels.
class CutOnOneDevice : public testing::TestWithParam<std::string> {};

TEST_P(CutOnOneDevice, step_as_one_rank_and_as_ranks_on_cpus) {
  const auto cut = [&](const std::string& device) {   // blocks of 128 end where the ranks' parts do
    RunConfig c = config(GetParam(), device);
    c.model.num_attention_heads = c.model.num_key_value_heads = 4;
    c.model.head_dim = 64;
    c.model.intermediate_size = 256;
    c.model.vocab_pad_multiple = 128;
    return c;
  };
  const double tolerance = GetParam() == "fp32" ? 1e-5 : 2e-3;
  const Outcome two = run(cut("cuda"), 2, 1, 2);
  expect_near(two, run(cut("cuda"), 1, 1), tolerance);
  expect_near(two, run(cut("cpu"), 2, 1, 2), tolerance);
}

#ifdef OCTET_SIMT
INSTANTIATE_TEST_SUITE_P(Recipes, CutOnOneDevice, testing::Values("fp32", "tensorwise"), [](const auto& which) { return which.param; });
const auto recipes = testing::Values("fp32", "blockwise");
const auto levels = testing::Values(2, 3);
#else
INSTANTIATE_TEST_SUITE_P(Recipes, CutOnOneDevice, testing::Values("fp32", "bf16", "tensorwise", "delayed", "rowwise", "blockwise"), [](const auto& which) { return which.param; });
const auto recipes = testing::Values("fp32", "bf16", "tensorwise", "delayed", "rowwise", "blockwise");
const auto levels = testing::Values(0, 1, 2, 3);
#endif
INSTANTIATE_TEST_SUITE_P(Recipes, RanksOnOneDevice, testing::Combine(recipes, levels),
                         [](const auto& which) { return std::get<0>(which.param) + "_zero" + std::to_string(std::get<1>(which.param)); });

}  // namespace
}  // namespace parity
