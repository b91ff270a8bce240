// How much of data parallelism's communication hides behind computation. Both are given lengths, an operation's and a layer's, in which ranks only sleep: the cores of
// the machine, and what else runs on them, hardly matter.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <string_view>
#include <thread>

#include "comm/world.h"
#include "core/trace.h"
#include "unit/train/small_run.h"

namespace octet::test {
namespace {

using Seconds = std::chrono::duration<double>;

// Ten layers of 9 tensors each, one micro-batch a rank and step. Of each unit (layers, embedding, head and its norm) the gradients are one operation and the weights another; 5 sums of scalars.
RunConfig deep_config(int64_t zero, bool overlap) {
  RunConfig c = small_config("fp32");
  c.model.num_hidden_layers = 10;
  c.model.use_qk_norm = c.model.attention_bias = false;
  c.batch.global = 2 * c.batch.micro;
  c.run.threads = 1;
  c.parallel.zero = zero;
  c.parallel.overlap = overlap;
  validate(c);
  return c;
}

bool is_layer(std::string_view span, std::string_view phase) {
  return span.starts_with("layers.") && span.find('.', 7) == std::string_view::npos && span.ends_with(phase);
}

struct Measured {
  double seconds = std::numeric_limits<double>::infinity();   // of a step, the shortest of those measured
  int64_t operations = 0;                                     // of a step, in all groups
};

// operation_s: how long a collective operation takes at least; layer_s: a layer's forward, besides its real work; backward takes twice that.
Measured measure(int64_t zero, bool overlap, double operation_s, double layer_s, int64_t steps = 1) {
  const RunConfig c = deep_config(zero, overlap);
  Measured m;
  run_local_ranks(2, [&](World& world) {
    const Mesh mesh(c, world);
    const auto compute = [&](const char* span) {
      if (is_layer(span, " forward")) std::this_thread::sleep_for(Seconds(layer_s));
      if (is_layer(span, " backward")) std::this_thread::sleep_for(Seconds(2 * layer_s));
    };
    Tracer tracer({compute, [] {}, {}});
    Engine engine(c, Engine::Memory::plain, {}, &mesh);
    engine.set_tracer(&tracer);
    const auto operations = [&] {
      int64_t calls = 0;
      for (const Mesh::GroupTraffic& group : mesh.traffic()) {
        for (const auto& [what, sent] : group.table) calls += sent.calls;
      }
      return calls;
    };
    for (int64_t s = 0; s <= steps; ++s) {   // the first one begins with no weights on their way, and is not measured
      const data::StepBatch whole = random_step(c, s);
      data::StepBatch own;
      own.micro.push_back(whole.micro[static_cast<size_t>(mesh.rank())]);
      own.valid_tokens = own.micro.front().valid_tokens;
      const int64_t before = operations();
      const auto begin = std::chrono::steady_clock::now();
      engine.step(own, s);
      const double seconds = Seconds(std::chrono::steady_clock::now() - begin).count();
      if (s == 0 || !mesh.first()) continue;
      m.seconds = std::min(m.seconds, seconds);
      m.operations = operations() - before;
    }
    engine.set_tracer(nullptr);   // weights are still on their way when the engine ends
  }, operation_s);
  return m;
}

class Overlap : public testing::TestWithParam<int64_t> {};

// Bar: a step takes no more than the longer of the two and 15 %, where one after the other it takes both. Communication is what it adds then: on busy cores an operation takes
// longer than it is told to.
void expect_hidden(int64_t zero, double operation_s, double layer_s, const char* regime) {
  Measured alone = measure(zero, true, 0, layer_s, 2), beside = measure(zero, true, operation_s, layer_s, 2);
  const Measured behind = measure(zero, false, operation_s, layer_s, 2);
  const double least = static_cast<double>(beside.operations) * operation_s;
  // Other load of the machine only adds.
  for (int again = 0; again < 6 && behind.seconds < 0.95 * (alone.seconds + least); ++again) alone.seconds = std::min(alone.seconds, measure(zero, true, 0, layer_s, 2).seconds);
  const double communication = std::max(least, behind.seconds - alone.seconds), longer = std::max(alone.seconds, communication);
  for (int again = 0; again < 6 && beside.seconds > 1.15 * longer; ++again) beside.seconds = std::min(beside.seconds, measure(zero, true, operation_s, layer_s, 2).seconds);
  EXPECT_EQ(behind.operations, beside.operations);
  EXPECT_EQ(beside.operations, zero < 3 ? 2 * 12 + 5 : 2 * 12 + 5 + 8) << "not one a unit and direction";
  // A step's clock may begin late, when weights that the step before has sent for (12 operations) are already there.
  EXPECT_GE(beside.seconds, static_cast<double>(beside.operations - 12) * operation_s) << regime;
  EXPECT_GE(behind.seconds, 0.95 * (alone.seconds + least)) << regime;
  EXPECT_LE(beside.seconds, 1.15 * longer) << regime;
  fmt::print("zero {}, {}: {} operations of {:g} ms; computation {:.0f} ms, communication {:.0f} ms, beside each other {:.0f} ms ({:.2f} of the longer), one after the other {:.0f} ms\n", zero,
             regime, beside.operations, 1e3 * operation_s, 1e3 * alone.seconds, 1e3 * communication, 1e3 * beside.seconds, beside.seconds / longer, 1e3 * behind.seconds);
}

// What has nothing to hide behind is in the 15 %, up to 9 operations: weights of embedding and first layer (zero 3), gradients of the same, sums of scalars.
TEST_P(Overlap, ALongerComputationHidesCommunication) { expect_hidden(GetParam(), 8e-3, 28e-3, "computation is longer"); }
INSTANTIATE_TEST_SUITE_P(Zero, Overlap, testing::Values(1, 2, 3));

// With one micro-batch a step zero 2 communicates as zero 1 does.
class OverlapOfMuch : public testing::TestWithParam<int64_t> {};
TEST_P(OverlapOfMuch, ALongerCommunicationHidesComputation) { expect_hidden(GetParam(), 15e-3, 6e-3, "communication is longer"); }
INSTANTIATE_TEST_SUITE_P(Zero, OverlapOfMuch, testing::Values(1, 3));

}  // namespace
}  // namespace octet::test
