// Ranks on one device, their groups staged through the host: training steps against those of one rank on it, and against as many ranks on CPUs.
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>

#include "parity/parity_run.h"

namespace parity {
namespace {

struct Outcome {
  std::vector<StepResult> steps;
  double validation = 0;
};

Outcome run(RunConfig c, int ranks, int64_t zero, int tp = 1) {
  c.parallel.zero = zero;
  c.parallel.tp = tp;
  c.parallel.sequence_parallel = tp > 1;
  c.run.threads = 1;
  Outcome seen;
  run_local_ranks(ranks, [&](World& world) {
    Mesh mesh(c, world);
    Engine e(c, Engine::Memory::poisoned, {}, &mesh);
    if (e.machine().kind() == DeviceKind::cuda) mesh.stage(e.device_copies());
    e.join_ranks();
    e.prepare_products({});
    for (int64_t s = 0; s < many_steps; ++s) {
      data::StepBatch own, whole = test::random_step(c, s % 8);
      for (size_t m = static_cast<size_t>(mesh.layout().dp_rank()); m < whole.micro.size(); m += static_cast<size_t>(mesh.layout().dp())) {
        own.micro.push_back(whole.micro[m]);
        own.valid_tokens += whole.micro[m].valid_tokens;
      }
      const StepResult r = e.step(own, s);
      if (mesh.first()) seen.steps.push_back(r);
    }
    const double validation = e.evaluate(test::random_step(c, 50).micro);
    if (mesh.first()) seen.validation = validation;
  });
  return seen;
}

void expect_near(const Outcome& got, const Outcome& want, double tolerance) {
  for (size_t s = 0; s < want.steps.size(); ++s) {
    EXPECT_NEAR(got.steps[s].loss, want.steps[s].loss, tolerance);
    EXPECT_NEAR(got.steps[s].grad_norm, want.steps[s].grad_norm, 10 * tolerance * want.steps[s].grad_norm);
    EXPECT_FALSE(got.steps[s].skipped);
    ASSERT_EQ(got.steps[s].health.size(), want.steps[s].health.size());
    for (size_t i = 0; i < want.steps[s].health.size(); ++i) EXPECT_EQ(got.steps[s].health[i].values.elements, want.steps[s].health[i].values.elements);
  }
  EXPECT_NEAR(got.validation, want.validation, tolerance);
}

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
