// Loss and every gradient tensor within 1e-5 (relative L2) of the independent reference, for each model feature, each recompute policy
// and each way to cut a batch into micro-batches.
#include <gtest/gtest.h>

#include <cstring>

#include "grad/reference_case.h"

namespace octet::test {
namespace {

constexpr double tolerance = 1e-5;

void expect_matches(Engine& engine, const StepResult& r, const ReferenceCase& c, const std::string& what) {
  EXPECT_FALSE(r.skipped) << r.offender;
  EXPECT_NEAR(r.loss + r.z_loss, c.loss, tolerance * std::abs(c.loss)) << c.name << ", " << what;
  ASSERT_EQ(c.gradients.size(), engine.model().params().size());
  for (const auto& p : engine.model().params()) {
    const auto& want = c.gradients.at(p->name);
    ASSERT_EQ(want.size(), static_cast<size_t>(p->grad.elements())) << p->name;
    EXPECT_LE(relative_l2(p->grad.as<float>(), want), tolerance) << c.name << ", " << what << ", " << p->name;
  }
}

class Reference : public testing::TestWithParam<std::string> {};

TEST_P(Reference, LossAndGradients) {
  ReferenceCase c = load_reference_case(GetParam());
  for (const char* gemm : {"blas", "fixed"}) {
    c.config.run.cpu_gemm = gemm;
    Engine engine(c.config, Engine::Memory::poisoned);
    set_weights(engine, c);
    expect_matches(engine, engine.step(split_batch(c, c.batch.samples), 0), c, gemm);
  }
}

TEST_P(Reference, RecomputationChangesNoBit) {
  ReferenceCase c = load_reference_case(GetParam());
  Engine plain(c.config);
  set_weights(plain, c);
  plain.step(split_batch(c, c.batch.samples), 0);
  const std::vector<std::vector<std::string>> policies = {{"norm"}, {"swiglu"}, {"attention"}, {"block"}, {"norm", "swiglu", "attention"}, {"norm", "swiglu", "attention", "block"}};
  for (const auto& modules : policies) {
    c.config.recompute.modules = modules;
    Engine engine(c.config, Engine::Memory::poisoned);
    set_weights(engine, c);
    expect_matches(engine, engine.step(split_batch(c, c.batch.samples), 0), c, "recompute " + modules.front());
    for (size_t i = 0; i < plain.model().params().size(); ++i) {
      const Tensor &a = plain.model().params()[i]->grad, &b = engine.model().params()[i]->grad;
      EXPECT_EQ(memcmp(a.data, b.data, a.bytes()), 0) << modules.front() << " of " << modules.size() << ", " << plain.model().params()[i]->name;
    }
    EXPECT_LE(engine.memory().activations, plain.memory().activations) << modules.front();
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, Reference, testing::ValuesIn(reference_case_names()), [](const auto& test_case) { return test_case.param; });

TEST(ReferenceCases, AllAreThere) {
  const auto names = reference_case_names();
  for (const char* wanted : {"mha", "gqa", "tied", "qk_norm", "llama3_rope", "partial_rotary", "qkv_bias", "head_dim", "padded_vocab", "document_mask", "position_reset", "z_loss", "ignored_labels"}) {
    EXPECT_NE(std::find(names.begin(), names.end(), wanted), names.end()) << wanted;
  }
}

// Samples with unequal numbers of valid tokens: a mean of micro-batch means would be wrong here.
TEST(MicroBatches, AnySplitGivesTheSameGradient) {
  ReferenceCase c = load_reference_case("ignored_labels");
  ASSERT_EQ(c.batch.samples, 8);
  for (int64_t micro : {1, 2, 4, 8}) {
    c.config.batch.micro = micro;
    Engine engine(c.config, Engine::Memory::poisoned);
    set_weights(engine, c);
    expect_matches(engine, engine.step(split_batch(c, micro), 0), c, std::to_string(8 / micro) + " micro-batches of " + std::to_string(micro));
  }
}

TEST(PaddedVocabulary, PaddedRowsGetNoGradient) {
  const ReferenceCase c = load_reference_case("padded_vocab");
  Engine engine(c.config);
  set_weights(engine, c);
  engine.step(split_batch(c, c.batch.samples), 0);
  for (const auto& p : engine.model().params()) {
    if (p->logical_rows == p->shape[0]) continue;
    for (int64_t i = p->whole.elements(); i < p->grad.elements(); ++i) ASSERT_EQ(p->grad.as<float>()[i], 0.0f) << p->name << "[" << i << "]";
  }
}

}  // namespace
}  // namespace octet::test
