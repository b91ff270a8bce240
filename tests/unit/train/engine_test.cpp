#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "unit/train/small_run.h"

namespace octet::test {
namespace {

class EveryRecipe : public testing::TestWithParam<std::string> {};

TEST_P(EveryRecipe, BitsDoNotDependOnThreads) {
  RunConfig c = small_config(GetParam());
  c.run.threads = 1;
  Engine one(c);
  const auto want = losses(one, c, 0, 3);
  for (int threads : {2, 5}) {
    c.run.threads = threads;
    Engine many(c);
    EXPECT_EQ(losses(many, c, 0, 3), want) << threads;
    EXPECT_EQ(masters(many), masters(one)) << threads;
  }
}

TEST_P(EveryRecipe, ReadsNoStaleMemory) {
  const RunConfig c = small_config(GetParam());
  Engine plain(c), poisoned(c, Engine::Memory::poisoned);
  EXPECT_EQ(losses(plain, c, 0, 3), losses(poisoned, c, 0, 3));
  EXPECT_EQ(plain.evaluate(random_step(c, 7).micro), poisoned.evaluate(random_step(c, 7).micro));
  EXPECT_EQ(masters(plain), masters(poisoned));
}

TEST_P(EveryRecipe, RecomputationChangesNoBit) {
  RunConfig c = small_config(GetParam());
  Engine plain(c);
  const auto want = losses(plain, c, 0, 3);
  const std::vector<std::vector<std::string>> policies = {{"norm"}, {"swiglu"}, {"attention"}, {"block"}, {"norm", "swiglu", "attention"}};
  for (const auto& modules : policies) {
    c.recompute.modules = modules;
    Engine engine(c, Engine::Memory::poisoned);
    EXPECT_EQ(losses(engine, c, 0, 3), want) << modules.front();
    EXPECT_EQ(masters(engine), masters(plain)) << modules.front();
    EXPECT_EQ(engine.quant().totals().size(), plain.quant().totals().size());
    for (size_t i = 0; i < plain.quant().totals().size(); ++i) EXPECT_EQ(engine.quant().totals()[i].elements, plain.quant().totals()[i].elements) << "recomputation is not counted";
    EXPECT_EQ(engine.quant().scales(), plain.quant().scales());
  }
}

// Gate and up in E4M3 between forward and backward: the loss of the first step is the same, gradients differ by the rounding, 2.3 % in the mean square of a
// value that is uniform in the logarithm.
TEST_P(EveryRecipe, SwigluInputsKeptInFp8) {
  RunConfig c = small_config(GetParam());
  Engine plain(c);
  for (const char* recomputed : {"", "swiglu"}) {
    c.recompute.swiglu_inputs = "fp8";
    if (*recomputed) c.recompute.modules = {recomputed};
    Engine engine(c, Engine::Memory::poisoned), reference(small_config(GetParam()));
    const StepResult got = engine.step(random_step(c, 0), 0), want = reference.step(random_step(c, 0), 0);
    EXPECT_EQ(got.loss, want.loss);
    EXPECT_LT(engine.memory().activations, plain.memory().activations);
    double difference = 0, norm = 0;
    for (size_t p = 0; p < engine.model().params().size(); ++p) {
      const Param &a = *engine.model().params()[p], &b = *reference.model().params()[p];
      for (int64_t i = 0; i < a.shape.elements(); ++i) {
        const double x = a.grad.as<float>()[i], y = b.grad.as<float>()[i];
        difference += (x - y) * (x - y);
        norm += y * y;
      }
    }
    EXPECT_GT(difference, 0.0);
    EXPECT_LT(std::sqrt(difference / norm), 0.05) << GetParam() << " " << recomputed;
  }
}

// Weight images by AdamW's pass at the end of a step, or by a pass of their own before the next one. A weight that becomes infinite in the second step lets the
// two after it be skipped, for the same reason; the third gathers statistics.
TEST_P(EveryRecipe, FusedImagesChangeNoBit) {
  RunConfig c = small_config(GetParam());
  c.log.stats_interval = 3;
  Engine plain(c);
  c.optim.fused_images = true;
  Engine fused(c, Engine::Memory::poisoned);
  const auto set_weight = [&](float value) {
    for (Engine* e : {&plain, &fused}) {
      for (const auto& p : e->model().params()) {
        if (p->name == "model.layers.1.mlp.gate_proj.weight") p->master.as<float>()[5] = value;
      }
    }
  };
  const bool quantizes = c.precision.recipe != "fp32" && c.precision.recipe != "bf16";
  for (int64_t s = 0; s < 6; ++s) {
    if (s == 1) set_weight(std::numeric_limits<float>::infinity());
    const StepResult got = fused.step(random_step(c, s), s), want = plain.step(random_step(c, s), s);
    EXPECT_EQ(got.skipped, want.skipped) << s;
    EXPECT_EQ(got.nonfinite, want.nonfinite) << s;
    EXPECT_EQ(got.offender, want.offender) << s;
    if (quantizes) {
      EXPECT_EQ(got.skipped, s == 2 || s == 3) << s;
      EXPECT_EQ(got.offender, got.skipped ? "layers.1.mlp.gate_up/gate_proj/w" : "") << s;
    }
    if (!got.skipped) {
      EXPECT_EQ(got.loss, want.loss) << s;
    }
    ASSERT_EQ(got.health.size(), want.health.size());
    for (size_t i = 0; i < got.health.size(); ++i) EXPECT_EQ(got.health[i].values.nonfinite, want.health[i].values.nonfinite) << got.health[i].site;
    if (s != 3) continue;
    set_weight(0.25f);
    for (Engine* e : {&plain, &fused}) e->weights_loaded(s + 1);
  }
  EXPECT_EQ(masters(fused), masters(plain));
  EXPECT_EQ(fused.quant().scales(), plain.quant().scales());
  for (size_t i = 0; i < plain.quant().totals().size(); ++i) EXPECT_EQ(fused.quant().totals()[i].elements, plain.quant().totals()[i].elements);
}

TEST_P(EveryRecipe, ValidationChangesNoState) {
  const RunConfig c = small_config(GetParam());
  Engine plain(c), checked(c);
  const auto want = losses(plain, c, 0, 4);
  std::vector<double> got;
  for (int64_t s = 0; s < 4; ++s) {
    const auto before = checked.evaluate(random_step(c, 50).micro);
    EXPECT_EQ(checked.evaluate(random_step(c, 50).micro), before);
    got.push_back(checked.step(random_step(c, s), s).loss);
  }
  EXPECT_EQ(got, want);
  EXPECT_EQ(checked.quant().history(), plain.quant().history());
}

TEST_P(EveryRecipe, TrainsOnARepeatedBatch) {
  const RunConfig c = small_config(GetParam());
  Engine e(c);
  const auto batch = random_step(c, 0);
  const double first = e.step(batch, 0).loss;
  double last = 0;
  for (int64_t s = 1; s < 15; ++s) last = e.step(batch, s).loss;
  EXPECT_NEAR(first, std::log(61.0), 0.15);
  EXPECT_LT(last, first - 0.3);
}

TEST_P(EveryRecipe, CountsWhatItQuantizes) {
  const RunConfig c = small_config(GetParam());
  Engine e(c);
  losses(e, c, 0, 1);
  const bool quantizes = GetParam() != "fp32" && GetParam() != "bf16";
  EXPECT_EQ(!e.quant().totals().empty(), quantizes);
  int64_t x = 0;
  for (const auto& t : e.quant().totals()) {
    if (t.role == Role::x) x += t.elements;
  }
  // Inputs of the four linears of two layers and of the head, over the 128 tokens of a step; twice where row and column image differ.
  const int64_t once = 128 * (2 * (64 + 128 + 64 + 160) + 64);
  const bool shared = GetParam() == "delayed" || GetParam() == "tensorwise";
  EXPECT_EQ(x, !quantizes ? 0 : shared ? once : 2 * once);
}

INSTANTIATE_TEST_SUITE_P(Recipes, EveryRecipe, testing::ValuesIn(all_recipes()), [](const auto& test_case) { return test_case.param; });

TEST(Engine, MicroBatchesDoNotChangeTheUpdateInFp32) {
  RunConfig c = small_config("fp32");
  std::vector<double> reference;
  for (int64_t micro : {4, 2, 1}) {
    c.batch.micro = micro;
    Engine e(c);
    // The same four samples, cut differently.
    RunConfig whole = c;
    whole.batch.micro = 4;
    const data::StepBatch all = random_step(whole, 0);
    data::StepBatch cut;
    cut.valid_tokens = all.valid_tokens;
    for (int64_t s = 0; s < 4; s += micro) {
      data::MicroBatch b;
      b.samples = micro;
      b.seq_len = 32;
      const auto range = [&](const std::vector<int32_t>& v) { return std::vector<int32_t>(v.begin() + s * 32, v.begin() + (s + micro) * 32); };
      b.tokens = range(all.micro[0].tokens);
      b.labels = range(all.micro[0].labels);
      b.positions = range(all.micro[0].positions);
      b.document_start = range(all.micro[0].document_start);
      cut.micro.push_back(std::move(b));
    }
    const StepResult r = e.step(cut, 0);
    if (reference.empty()) reference = {r.loss, r.grad_norm};
    EXPECT_NEAR(r.loss, reference[0], 1e-6 * reference[0]) << micro;
    EXPECT_NEAR(r.grad_norm, reference[1], 1e-5 * reference[1]) << micro;
  }
}

// Delayed scaling merges amaxes over micro-batches and updates once a step: the scales do not depend on the split.
TEST(Engine, DelayedScalesDoNotDependOnMicroBatches) {
  RunConfig c = small_config("delayed");
  c.batch.micro = 4;
  Engine whole(c);
  const data::StepBatch all = random_step(c, 0);
  whole.step(all, 0);
  c.batch.micro = 1;
  Engine split(c);
  data::StepBatch cut;
  cut.valid_tokens = all.valid_tokens;
  for (int64_t s = 0; s < 4; ++s) {
    data::MicroBatch b = all.micro[0];
    const auto range = [&](std::vector<int32_t>& v) { v = std::vector<int32_t>(v.begin() + s * 32, v.begin() + (s + 1) * 32); };
    b.samples = 1;
    range(b.tokens);
    range(b.labels);
    range(b.positions);
    range(b.document_start);
    cut.micro.push_back(std::move(b));
  }
  split.step(cut, 0);
  EXPECT_EQ(split.quant().scales(), whole.quant().scales());
  EXPECT_EQ(split.quant().history(), whole.quant().history());
}

class NonFinite : public testing::TestWithParam<float> {};

TEST_P(NonFinite, UpdateIsSkippedCountedAndNamed) {
  const RunConfig c = small_config("delayed");
  Engine e(c);
  losses(e, c, 0, 2);
  Param* gate = nullptr;
  for (const auto& p : e.model().params()) {
    if (p->name == "model.layers.1.mlp.gate_proj.weight") gate = p.get();
  }
  ASSERT_NE(gate, nullptr);
  const float healthy = gate->master.as<float>()[5];
  gate->master.as<float>()[5] = GetParam();
  e.weights_loaded();
  const auto before = masters(e);
  const auto history = e.quant().history(), scales = e.quant().scales();
  const StepResult r = e.step(random_step(c, 2), 2);
  EXPECT_TRUE(r.skipped);
  EXPECT_GE(r.nonfinite, 1);
  EXPECT_EQ(r.offender, "layers.1.mlp.gate_up/gate_proj/w");
  EXPECT_EQ(e.quant().history(), history);
  EXPECT_EQ(e.quant().scales(), scales);
  EXPECT_EQ(e.updates(), 2);
  for (size_t i = 0; i < before.size(); ++i) EXPECT_EQ(memcmp(before[i].data(), e.model().params()[i]->master.data, before[i].size() * 4), 0) << i;
  // Healed, the run goes on as if the bad step had not been.
  gate->master.as<float>()[5] = healthy;
  e.weights_loaded();
  Engine straight(c);
  losses(straight, c, 0, 2);
  EXPECT_EQ(losses(e, c, 2, 5), losses(straight, c, 2, 5));
}

INSTANTIATE_TEST_SUITE_P(Values, NonFinite, testing::Values(std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()));

TEST(Engine, NonFiniteGradientIsNamedInBf16Too) {
  const RunConfig c = small_config("bf16");
  Engine e(c);
  for (const auto& p : e.model().params()) {
    if (p->name == "model.norm.weight") p->master.as<float>()[0] = std::numeric_limits<float>::infinity();
  }
  e.weights_loaded();
  const StepResult r = e.step(random_step(c, 0), 0);
  EXPECT_TRUE(r.skipped);
  EXPECT_NE(r.offender.find(".grad"), std::string::npos) << r.offender;
}

TEST(Engine, PolicyDecidesWhichModulesAreQuantized) {
  RunConfig c = small_config("tensorwise");
  c.precision.head = "bf16";
  c.precision.rules = {{"layers.0.*", "bf16"}};
  Engine e(c);
  losses(e, c, 0, 1);
  int64_t x = 0;
  for (const auto& t : e.quant().totals()) {
    if (t.role == Role::x) x += t.elements;
  }
  EXPECT_EQ(x, 128 * (64 + 128 + 64 + 160));
  c.precision.rules.clear();
  c.precision.first_last_layers_bf16 = 1;
  Engine none(c);
  losses(none, c, 0, 1);
  EXPECT_TRUE(none.quant().totals().empty());
}

// The head makes its logits in chunks of tokens; a dump of it wants them all at once. Losses and gradients are the same, also of a tied weight, which the head
// writes first and the embedding adds to.
TEST(Engine, ChunksOfLogitsDoNotChangeGradients) {
  for (const bool tied : {false, true}) {
    RunConfig c = small_config("fp32");
    c.model.vocab_size = c.model.vocab_pad_multiple * 1024;   // 2^15: a chunk has 2^24 / 2^15 = 512 rows
    c.model.num_hidden_layers = 1;
    c.model.hidden_size = 32;
    c.model.tie_word_embeddings = tied;
    c.data.seq_len = 320;                                     // two samples of it: chunks of 512 and 128
    c.batch.global = 4;                                       // two micro-batches: written, then added to
    c.precision.head = "bf16";
    c.eval.interval = 0;
    c.model.max_position_embeddings = 0;
    validate(c);
    Engine chunked(c, Engine::Memory::poisoned), whole(c, Engine::Memory::poisoned, "head");
    Dump dump("head", whole.machine());
    const data::StepBatch batch = random_step(c, 0);
    const StepResult a = chunked.step(batch, 0), b = whole.step(batch, 0, &dump);
    EXPECT_NEAR(a.loss, b.loss, 1e-6);
    EXPECT_NEAR(a.grad_norm, b.grad_norm, 1e-5 * b.grad_norm);
    for (size_t p = 0; p < chunked.model().params().size(); ++p) {
      const Tensor &x = chunked.model().params()[p]->grad, &y = whole.model().params()[p]->grad;
      double difference = 0, norm = 0;
      for (int64_t i = 0; i < x.elements(); ++i) {
        difference += std::pow(static_cast<double>(x.as<float>()[i]) - y.as<float>()[i], 2);
        norm += std::pow(static_cast<double>(y.as<float>()[i]), 2);
      }
      EXPECT_LE(std::sqrt(difference), 1e-5 * std::sqrt(norm) + 1e-9) << chunked.model().params()[p]->name << (tied ? ", tied" : "");
    }
  }
}

TEST(Engine, PlanIsWhatIsUsed) {
  const RunConfig c = small_config("blockwise");
  const Engine planned(c, Engine::Memory::plan_only);
  Engine real(c);  // arenas of exactly the planned size: a step that needs more ends with an error
  EXPECT_EQ(planned.memory().total(), real.memory().total());
  EXPECT_NO_THROW(losses(real, c, 0, 1));
}

// A refactor must not move these: fixed summation order, so the same on every x86-64-v3 machine (libm's log, sin, cos and pow aside).
TEST(GoldenCurve, FixedOrderLossesStay) {
  const std::vector<std::pair<const char*, std::vector<double>>> golden = {
#include "unit/train/golden_curve.inc"
  };
  ASSERT_EQ(golden.size(), all_recipes().size());
  for (const auto& [recipe, want] : golden) {
    RunConfig c = small_config(recipe);
    c.run.cpu_gemm = "fixed";
    Engine e(c);
    const auto got = losses(e, c, 0, static_cast<int64_t>(want.size()));
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-9) << recipe << " step " << i << ": " << fmt::format("{:.12f}", got[i]);
  }
}

}  // namespace
}  // namespace octet::test
