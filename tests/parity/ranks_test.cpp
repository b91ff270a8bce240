// Ranks on one device, their groups staged through the host: training steps against those of one rank on it, and against as many ranks on CPUs.
#include "parity/ranks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ranges>

#include "train/job.h"

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

// Codes and scales against the BF16 gathers in whose place they are.
double share_of_bf16(const Outcome& codes, const Outcome& plain, const std::string& group) {
  const auto more = [&](const Outcome& a, const Outcome& b, Dtype type) {
    const auto of = [&](const Outcome& o) { return o.gathered.contains({group, type}) ? o.gathered.at({group, type}) : 0; };
    return of(a) - of(b);
  };
  int64_t bytes = 0;
  for (const Dtype type : {Dtype::e4m3, Dtype::e5m2, Dtype::e8m0, Dtype::f32}) bytes += more(codes, plain, type);
  const int64_t replaced = more(plain, codes, Dtype::bf16);
  EXPECT_GT(replaced, 0);
  return static_cast<double>(bytes) / static_cast<double>(replaced);
}

// Weights: matrices of one to three groups of 128 rows, the last one ragged, so that shards are whole, uneven and empty ones.
class WeightCodesOnOneDevice : public testing::TestWithParam<std::tuple<std::string, int64_t>> {};

TEST_P(WeightCodesOnOneDevice, change_no_bit) {
  const auto& [recipe, zero] = GetParam();
  RunConfig c = config(recipe, "cuda");
  c.model.intermediate_size = 320;
  const Outcome plain = run(c, 2, zero);
  c.parallel.fp8_param_gather = true;
  const Outcome codes = run(c, 2, zero);
  expect_same(codes, plain);
  EXPECT_LE(share_of_bf16(codes, plain, "shard"), 0.52);
}

// Activations and, where one image has the bytes of both, output gradients.
class TokenCodesOnOneDevice : public testing::TestWithParam<std::string> {};

// Blocks that are no native ones: squares, of which one image has the bytes of both, or blocks of several rows, whose grids of scales are padded on each rank and in the whole.
PrecisionConfig odd_blocks(bool square) {
  PrecisionConfig p;
  p.recipe = "custom";
  p.emulate = true;
  const auto operand = [](int64_t rows, int64_t cols) {
    CustomOperand o;
    o.format = "e4m3";
    o.block_rows = rows;
    o.block_cols = cols;
    return o;
  };
  p.custom = {{"fprop.x", square ? operand(32, 32) : operand(2, 64)}, {"fprop.w", operand(1, 64)}, {"dgrad.dy", operand(1, 64)}, {"dgrad.w", operand(1, 64)},
              {"wgrad.x", square ? operand(32, 32) : operand(4, 32)}, {"wgrad.dy", operand(1, 32)}};
  return p;
}

TEST_P(TokenCodesOnOneDevice, change_no_bit) {
  const std::string& which = GetParam();
  const bool odd = which == "square" || which == "ragged", long_blocks = which == "blockwise", mx = which == "mxfp8";
  RunConfig c = config(odd ? "bf16" : which, "cuda");
  if (odd) c.precision = odd_blocks(which == "square");
  c.model.num_hidden_layers = 1;
  // A rank's part of a matrix ends where blocks do; its tokens are whole blocks of 128, or (odd) three of 32.
  c.model.num_attention_heads = c.model.num_key_value_heads = 2;
  c.model.head_dim = long_blocks ? 128 : 64;
  c.model.intermediate_size = long_blocks ? 256 : 128;
  if (long_blocks) c.model.hidden_size = 128;
  c.model.vocab_pad_multiple = 128;
  c.data.seq_len = long_blocks ? 128 : odd ? 96 : seq_len;
  c.batch.micro = c.batch.global = 2;
  // The head reads its input both ways at once: where that is two images, they are no smaller than BF16 together.
  c.precision.head = long_blocks || mx ? "bf16" : "fp8";
  validate(c);
  const Outcome plain = run(c, 2, 1, 2);
  c.parallel.fp8_activation_gather = true;
  const Outcome codes = run(c, 2, 1, 2);
  expect_same(codes, plain);
  if (which == "tensorwise" || which == "delayed" || long_blocks || mx) {
    EXPECT_LE(share_of_bf16(codes, plain, "tp"), 0.52);
  }
}

// A GPU for each rank is the rule: here all have the first one.
TEST(RanksOfOneGpu, are_refused_unless_it_is_wanted) {
  RunConfig c = config("bf16", "cuda");
  c.parallel.backend = "mpi";
  run_local_ranks(2, [&](World& world) {
    Mesh mesh(c, world);
    Machine machine({DeviceKind::cuda, 1});
    std::string refusal;
    try {
      join_devices(c, world, mesh, machine);
    } catch (const Error& e) {
      EXPECT_EQ(e.code, ExitCode::config);
      refusal = e.what();
    }
    EXPECT_NE(refusal.find("ranks 0 and 1 on "), std::string::npos) << refusal;
    EXPECT_NE(refusal.find("would share"), std::string::npos) << refusal;
    RunConfig shared = c;
    shared.parallel.share_gpus = true;
    join_devices(shared, world, mesh, machine);
    Arena memory = machine.arena(256), scratch;
    const Tensor x = memory.alloc(Dtype::f32, {1});
    const float mine = static_cast<float>(world.rank() + 1);
    machine.copy_in(x.data, &mine, sizeof mine);
    mesh.shards()->wait(mesh.shards()->all_reduce(x, Reduce::sum));
    float sum = 0;
    machine.copy_out(&sum, x.data, sizeof sum);
    EXPECT_EQ(sum, 3.0f) << "the groups work on the device's memory";
  });
}

// Each rank times for itself; what counts is the first rank's choice, where it has the product.
TEST(RanksOfOneGpu, multiply_with_the_algorithms_of_the_first) {
  RunConfig c = config("bf16", "cuda");
  c.run.gemm_choice = "timed";
  run_local_ranks(3, [&](World& world) {
    c.batch.global = 3 * c.batch.micro;
    const RunConfig own = c;
    Mesh mesh(own, world);
    Engine e(own, Engine::Memory::plain, {}, &mesh);
    mesh.to_devices(staged_groups(device_copies(e.machine())));
    const auto number = static_cast<uint64_t>(world.rank() + 1);
    e.prepare_products({{"of all", {number}}, {fmt::format("of rank {} and behind", world.rank()), {number}}, {world.rank() > 0 ? "of all but the first" : "of the first", {number}}});
    const ProductChoices choices = e.machine().product_choices();
    EXPECT_EQ(choices.at("of all")[0], 1u);
    EXPECT_EQ(choices.at("of all but the first")[0], 2u);
    for (int r = 0; r < 3; ++r) EXPECT_EQ(choices.at(fmt::format("of rank {} and behind", r))[0], static_cast<uint64_t>(r + 1));
    EXPECT_GT(choices.size(), 6u) << "those of the products of a step too";
    for (const std::string& theirs : exchange(*mesh.all(), fmt::format("{}", fmt::join(std::views::keys(choices), "|")))) EXPECT_EQ(theirs, fmt::format("{}", fmt::join(std::views::keys(choices), "|")));
  });
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
INSTANTIATE_TEST_SUITE_P(Recipes, WeightCodesOnOneDevice, testing::Combine(testing::Values("tensorwise", "blockwise"), testing::Values(1, 3)),
                         [](const auto& which) { return std::get<0>(which.param) + "_zero" + std::to_string(std::get<1>(which.param)); });
INSTANTIATE_TEST_SUITE_P(Recipes, TokenCodesOnOneDevice, testing::Values("tensorwise", "delayed", "rowwise", "blockwise", "mxfp8", "square", "ragged"), [](const auto& which) { return which.param; });
INSTANTIATE_TEST_SUITE_P(Recipes, RanksOnOneDevice, testing::Combine(recipes, levels),
                         [](const auto& which) { return std::get<0>(which.param) + "_zero" + std::to_string(std::get<1>(which.param)); });

}  // namespace
}  // namespace parity
