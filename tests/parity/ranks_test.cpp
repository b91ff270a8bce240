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

Outcome run(RunConfig c, int ranks, int64_t zero) {
  c.parallel.zero = zero;
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
      for (size_t m = static_cast<size_t>(world.rank()); m < whole.micro.size(); m += static_cast<size_t>(ranks)) {
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

#ifdef OCTET_SIMT
const auto recipes = testing::Values("fp32", "blockwise");
const auto levels = testing::Values(2, 3);
#else
const auto recipes = testing::Values("fp32", "bf16", "tensorwise", "delayed", "rowwise", "blockwise");
const auto levels = testing::Values(0, 1, 2, 3);
#endif
INSTANTIATE_TEST_SUITE_P(Recipes, RanksOnOneDevice, testing::Combine(recipes, levels),
                         [](const auto& which) { return std::get<0>(which.param) + "_zero" + std::to_string(std::get<1>(which.param)); });

}  // namespace
}  // namespace parity
