// Training steps of several ranks, threads of this process whose groups are local ones or, on devices, made of those.
#pragma once
#include <gtest/gtest.h>

#include <map>

#include "parity/parity_run.h"
#include "train/bench_step.h"
#include "train/device_groups.h"

namespace parity {

struct Outcome {
  std::vector<StepResult> steps;
  double validation = 0;
  std::vector<std::vector<std::vector<float>>> masters;   // at the end, of each rank, the own rows of each parameter
  std::map<std::pair<std::string, Dtype>, int64_t> gathered;   // bytes of the first rank's all-gathers by group and type
};

inline std::vector<std::vector<float>> own_masters(Engine& e) {
  std::vector<std::vector<float>> all;
  for (const auto& p : e.model().params()) {
    all.emplace_back();
    if (p->own_elements() > 0) read_master(e.machine(), *p, [&](const float* w) { all.back().assign(w, w + p->own_elements()); });
  }
  return all;
}

// How a rank's groups come to its device; called in the rank's thread.
using GroupsOf = std::function<DeviceGroups(World&, Engine&)>;
inline DeviceGroups through_host(World&, Engine& e) { return staged_groups(device_copies(e.machine())); }

inline Outcome run(RunConfig c, int ranks, int64_t zero, int tp = 1, const GroupsOf& groups_of = through_host) {
  c.parallel.zero = zero;
  c.parallel.tp = tp;
  c.parallel.sequence_parallel = tp > 1;
  c.run.threads = 1;
  Outcome seen;
  seen.masters.resize(static_cast<size_t>(ranks));
  run_local_ranks(ranks, [&](World& world) {
    Mesh mesh(c, world);
    Engine e(c, Engine::Memory::poisoned, {}, &mesh);
    if (e.machine().kind() == DeviceKind::cuda) mesh.to_devices(groups_of(world, e));
    e.join_ranks();
    e.prepare_products({});
    for (int64_t s = 0; s < many_steps; ++s) {
      const StepResult r = e.step(own_part(test::random_step(c, s % 8), mesh.layout()), s);
      if (mesh.first()) seen.steps.push_back(r);
    }
    const double validation = e.evaluate(test::random_step(c, 50).micro);
    seen.masters[static_cast<size_t>(mesh.rank())] = own_masters(e);
    if (!mesh.first()) return;
    seen.validation = validation;
    for (const Mesh::GroupTraffic& g : mesh.traffic()) {
      for (const auto& [what, sent] : g.table) {
        if (what.first == "all_gather") seen.gathered[{g.group, what.second}] += sent.bytes;
      }
    }
  });
  return seen;
}

inline void expect_near(const Outcome& got, const Outcome& want, double tolerance) {
  for (size_t s = 0; s < want.steps.size(); ++s) {
    EXPECT_NEAR(got.steps[s].loss, want.steps[s].loss, tolerance);
    EXPECT_NEAR(got.steps[s].grad_norm, want.steps[s].grad_norm, 10 * tolerance * want.steps[s].grad_norm);
    EXPECT_FALSE(got.steps[s].skipped);
    ASSERT_EQ(got.steps[s].health.size(), want.steps[s].health.size());
    for (size_t i = 0; i < want.steps[s].health.size(); ++i) EXPECT_EQ(got.steps[s].health[i].values.elements, want.steps[s].health[i].values.elements);
  }
  EXPECT_NEAR(got.validation, want.validation, tolerance);
}

// The same bits of losses, norms and weights.
inline void expect_same(const Outcome& got, const Outcome& want) {
  ASSERT_EQ(got.steps.size(), want.steps.size());
  for (size_t s = 0; s < want.steps.size(); ++s) {
    EXPECT_EQ(got.steps[s].loss, want.steps[s].loss);
    EXPECT_EQ(got.steps[s].grad_norm, want.steps[s].grad_norm);
    EXPECT_FALSE(got.steps[s].skipped);
    ASSERT_EQ(got.steps[s].health.size(), want.steps[s].health.size());
    for (size_t i = 0; i < want.steps[s].health.size(); ++i) {
      EXPECT_EQ(got.steps[s].health[i].values.elements, want.steps[s].health[i].values.elements);
      EXPECT_EQ(got.steps[s].health[i].values.amax, want.steps[s].health[i].values.amax);
    }
  }
  EXPECT_EQ(got.validation, want.validation);
  EXPECT_TRUE(got.masters == want.masters);
}

}  // namespace parity
