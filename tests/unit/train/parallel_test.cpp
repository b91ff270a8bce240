// Data parallelism: ranks as threads (comm/world.h) against one rank that has the whole batch.
#include <gtest/gtest.h>

#include <limits>

#include "unit/train/deaf_world.h"
#include "unit/train/parallel_run.h"

namespace octet::test {
namespace {

// dp 2 and 4, every level of ZeRO, replicas of shards.
const std::vector<Layouted> layouts{{2, 0, 1}, {2, 1, 1}, {2, 2, 1}, {2, 3, 1}, {4, 0, 1}, {4, 1, 1}, {4, 2, 1}, {4, 3, 1}, {4, 1, 2}, {4, 3, 2}};

std::string text(const Layouted& l) { return "dp " + std::to_string(l.dp) + ", zero " + std::to_string(l.zero) + ", " + std::to_string(l.replicate) + " replicas"; }

class TiedOrNot : public testing::TestWithParam<bool> {};

// The bar: gradients of the first step within 1e-5 relative L2, losses and norms of 10 steps within 1e-5.
TEST_P(TiedOrNot, GradientsAndLossesAreThoseOfOneRank) {
  RunConfig c = parallel_config("fp32");
  c.batch.micro = 1;
  c.batch.global = GetParam() ? 12 : 8;
  c.model.num_hidden_layers = 3;
  c.model.tie_word_embeddings = GetParam();
  const Seen want = run(c, {1, 1, 1}, 10);
  // A tied head and its embedding are one unit: the levels that lend memory by unit are what differs.
  for (const Layouted& l : GetParam() ? std::vector<Layouted>{{2, 2, 1}, {3, 3, 1}, {4, 3, 1}} : layouts) {
    const Seen got = run(c, l, 10);
    for (size_t i = 0; i < want.gradients.size(); ++i) EXPECT_LE(relative_l2(got.gradients[i], want.gradients[i]), 1e-5) << text(l) << ", parameter " << i;
    for (size_t s = 0; s < want.steps.size(); ++s) {
      EXPECT_NEAR(got.steps[s].loss, want.steps[s].loss, 1e-5 * want.steps[s].loss) << text(l);
      EXPECT_NEAR(got.steps[s].grad_norm, want.steps[s].grad_norm, 1e-5 * want.steps[s].grad_norm) << text(l);
    }
    EXPECT_NEAR(got.validation, want.validation, 1e-5 * want.validation) << text(l);
  }
}
INSTANTIATE_TEST_SUITE_P(Heads, TiedOrNot, testing::Bool());

class EveryRecipeParallel : public testing::TestWithParam<std::string> {};

void expect_same_bits(const Seen& got, const Seen& want, const std::string& where) {
  for (size_t s = 0; s < want.steps.size(); ++s) {
    EXPECT_EQ(got.steps[s].loss, want.steps[s].loss) << where;
    // Squares are summed shard by shard.
    EXPECT_NEAR(got.steps[s].grad_norm, want.steps[s].grad_norm, 1e-12 * want.steps[s].grad_norm) << where;
    ASSERT_EQ(got.steps[s].health.size(), want.steps[s].health.size());
    for (size_t i = 0; i < want.steps[s].health.size(); ++i) {
      EXPECT_EQ(got.steps[s].health[i].values.elements, want.steps[s].health[i].values.elements) << where << ", " << want.steps[s].health[i].site;
      EXPECT_EQ(got.steps[s].health[i].values.sum_xx, want.steps[s].health[i].values.sum_xx) << where << ", " << want.steps[s].health[i].site;
    }
  }
  for (size_t i = 0; i < want.masters.size(); ++i) {
    EXPECT_TRUE(got.masters[i] == want.masters[i]) << where << ": parameter " << i << " is " << relative_l2(got.masters[i], want.masters[i]) << " away";
  }
  EXPECT_TRUE(got.scales == want.scales) << where;
  EXPECT_EQ(got.validation, want.validation) << where;
}

// Levels of ZeRO differ in what ranks keep and when they move it. With one micro-batch a rank all sum the same numbers in the same order: the same bits. With
// several, 2 and 3 sum over the ranks first and over the micro-batches then, 0 and 1 the other way round. Overlap changes no bit, and elements are counted as by one rank.
TEST_P(EveryRecipeParallel, ShardingAndOverlapChangeNoBit) {
  RunConfig c = parallel_config(GetParam());
  c.log.stats_interval = 2;
  if (GetParam() != "fp32") c.optim.moments = "bf16";
  c.batch.global = 4;
  const Seen one = run(c, {1, 1, 1}, 3), two = run(c, {2, 1, 1}, 3);
  for (size_t s = 0; s < one.steps.size(); ++s) EXPECT_NEAR(two.steps[s].loss, one.steps[s].loss, 2e-3 * one.steps[s].loss);
  expect_same_counts(two, one);
  for (const Layouted& l : {Layouted{2, 0, 1}, {2, 1, 1, false}, {2, 2, 1}, {2, 3, 1}}) {
    const Seen got = run(c, l, 3);
    expect_same_bits(got, two, text(l));
    expect_same_counts(got, one);
  }
  c.batch.global = 12;
  const Seen sharded = run(c, {2, 2, 1}, 2);
  for (const Layouted& l : {Layouted{2, 2, 1, false}, {2, 3, 1, false}}) expect_same_bits(run(c, l, 2), sharded, text(l));
}
INSTANTIATE_TEST_SUITE_P(Recipes, EveryRecipeParallel, testing::ValuesIn(all_recipes()), [](const auto& recipe) { return recipe.param; });

// Weights that come and go while others compute: slow operations must change no bit. A tied head uses the embedding's unit a second time.
TEST(DataParallel, SlowOperationsChangeNoBit) {
  RunConfig c = parallel_config("fp32");
  c.batch.global = 6;
  c.model.num_hidden_layers = 4;
  for (const bool tied : {false, true}) {
    c.model.tie_word_embeddings = tied;
    const Seen one_by_one = run(c, {3, 3, 1, false}, 2);
    expect_same_bits(run(c, {3, 3, 1}, 2, 1e-3), one_by_one, tied ? "tied" : "untied");
    expect_same_bits(run(c, {3, 2, 1}, 2, 1e-3), one_by_one, tied ? "tied" : "untied");
  }
}

// The maximum over micro-batches is that over the ranks: one rank with eight micro-batches, and four with two each.
TEST(DataParallel, AmaxHistoriesDoNotDependOnTheRanks) {
  for (const char* recipe : {"delayed", "static"}) {
    RunConfig c = parallel_config(recipe);
    if (c.precision.recipe == "static") c.precision.calibration_steps = 2;
    const Seen one = run(c, {1, 1, 1}, 1);
    ASSERT_NE(one.scales, std::vector<double>(one.scales.size(), 1.0));
    Layouted codes{2, 1, 1};
    codes.fp8_params = true;
    for (const Layouted& l : {Layouted{4, 2, 1}, {2, 0, 1}, {2, 1, 1}, {2, 3, 1}, codes}) EXPECT_EQ(run(c, l, 1).scales, one.scales) << text(l);
  }
}

// A NaN that one rank meets: all skip the step, name the tensor, keep what they have, and go on alike.
TEST(DataParallel, AStepThatIsNotFiniteOnOneRankIsSkippedByAll) {
  for (const int64_t zero : {0, 1, 2, 3}) {
    RunConfig c = parallel_config("blockwise");
    c.parallel.zero = zero;
    run_local_ranks(3, [&](World& world) {
      c.batch.global = 12;
      const Mesh mesh(c, world);
      Engine e(c, Engine::Memory::poisoned, {}, &mesh);
      e.step(own_part(random_step(c, 0), mesh.layout()), 0);
      // The rank that has the first norm makes it infinite: all gather that, but for level 0, where the others' copies stay sound.
      const Param& norm = *e.model().params()[1];
      if (norm.own_elements() > 0 && (zero > 0 || mesh.first())) norm.master.as<float>()[0] = std::numeric_limits<float>::infinity();
      const auto before = masters(e);
      e.weights_loaded(1);
      const StepResult r = e.step(own_part(random_step(c, 1), mesh.layout()), 1);
      EXPECT_TRUE(r.skipped) << zero;
      EXPECT_EQ(masters(e), before) << zero;
      EXPECT_FALSE(r.offender.empty());
    });
  }
}

TEST(DataParallel, TheProofFindsGradientsThatAreSummedOverTheWrongRanks) {
  for (const int64_t zero : {0, 1, 2, 3}) {
    for (const char* deaf : {"", "shard", "replica"}) {
      if (zero == 0 && std::string(deaf) == "shard") continue;   // there is none
      run_local_ranks(4, [&](World& world) {
        RunConfig c = parallel_config("bf16");
        c.parallel.zero = zero;
        c.parallel.dp_replicate = zero ? 2 : 1;
        const bool found = proof_with_deaf_group(c, world, deaf).find("is summed over other ranks than the 4 data-parallel ones") != std::string::npos;
        EXPECT_EQ(found, *deaf != 0) << zero << deaf;
      });
    }
  }
}

}  // namespace
}  // namespace octet::test
