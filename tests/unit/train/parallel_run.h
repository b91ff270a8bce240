// Runs of several ranks as threads (comm/world.h) of the tiny model, and what they compute put together.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <string>
#include <vector>

#include "comm/world.h"
#include "train/bench_step.h"
#include "unit/train/small_run.h"

namespace octet::test {

// Matrices of one to three groups of 128 rows, so that shards are whole, uneven and empty ones.
inline RunConfig parallel_config(const std::string& recipe) {
  RunConfig c = small_config(recipe);
  c.model.vocab_size = 300;
  c.model.intermediate_size = 384;
  c.batch.global = 16;
  c.run.threads = 1;
  validate(c);
  return c;
}

struct Layouted {
  int dp;
  int64_t zero, replicate;
  bool overlap = true;
  int tp = 1;
  bool sequence = false, fp8_gather = false, fp8_params = false;
};

inline data::MicroBatch first_sample(data::MicroBatch b) {
  const auto n = static_cast<size_t>(b.seq_len);
  for (std::vector<int32_t>* v : {&b.tokens, &b.labels, &b.positions, &b.document_start}) v->resize(n);
  b.samples = 1;
  b.valid_tokens = std::count_if(b.labels.begin(), b.labels.end(), [](int32_t label) { return label >= 0; });
  return b;
}

// What ranks see of a run, put together from all of them.
struct Seen {
  std::vector<StepResult> steps;               // the first rank's
  std::vector<std::vector<float>> gradients;   // of the first step, by parameter
  std::vector<std::vector<float>> masters;     // at the end
  std::vector<double> scales;
  double validation = 0;
  std::vector<QuantRegistry::Total> totals;
};

// Of the whole tensors, without padding. Ranks that have the same write the same.
inline void collect(Engine& e, const Tensor Param::*tensor, std::vector<std::vector<float>>& all) {
  const auto& params = e.model().params();
  all.resize(params.size());
  for (size_t i = 0; i < params.size(); ++i) {
    const Param& p = *params[i];
    all[i].resize(static_cast<size_t>(p.whole.elements()));
    const int64_t cols = p.row_elements(), whole_cols = p.whole.rank() == 1 ? 1 : p.whole[1];
    const float* own = (p.*tensor).as<float>();
    for (int64_t r = 0; r < p.own.count && p.own.first + r < p.logical_rows; ++r) {
      std::copy(own + r * cols, own + (r + 1) * cols, all[i].begin() + (p.first_row + p.own.first + r) * whole_cols + p.first_col);
    }
  }
}

// delay_s: that much longer takes every operation between the ranks.
inline Seen run(RunConfig c, const Layouted& layout, int64_t steps, double delay_s = 0) {
  c.parallel.zero = layout.zero;
  c.parallel.dp_replicate = layout.replicate;
  c.parallel.overlap = layout.overlap;
  c.parallel.tp = layout.tp;
  c.parallel.sequence_parallel = layout.sequence;
  c.parallel.fp8_activation_gather = layout.fp8_gather;
  c.parallel.fp8_param_gather = layout.fp8_params;
  Seen seen;
  std::mutex mutex;
  run_local_ranks(layout.dp * layout.tp, [&](World& world) {
    const Mesh mesh(c, world);
    Engine e(c, Engine::Memory::poisoned, {}, &mesh);
    e.join_ranks();   // and leaves nothing behind
    for (int64_t s = 0; s < steps; ++s) {
      const StepResult r = e.step(own_part(random_step(c, s), mesh.layout()), s);
      const std::lock_guard lock(mutex);
      if (mesh.first()) seen.steps.push_back(r);
      if (s == 0) collect(e, &Param::own_grad, seen.gradients);
    }
    // The last micro-batch is shorter.
    std::vector<data::MicroBatch> batches = random_step(c, 50).micro;
    batches.back() = first_sample(batches.back());
    const double validation = e.evaluate(batches);
    const std::lock_guard lock(mutex);
    collect(e, &Param::master, seen.masters);
    if (!mesh.first()) return;
    seen.validation = validation;
    seen.totals = e.quant().totals();
    seen.scales.assign(e.quant().scales().begin(), e.quant().scales().end());
  }, delay_s);
  return seen;
}

inline double relative_l2(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
    norm += static_cast<double>(b[i]) * b[i];
  }
  return norm == 0 ? std::sqrt(difference) : std::sqrt(difference / norm);
}

inline void expect_same_counts(const Seen& got, const Seen& want) {
  ASSERT_EQ(got.totals.size(), want.totals.size());
  for (size_t i = 0; i < want.totals.size(); ++i) EXPECT_EQ(got.totals[i].elements, want.totals[i].elements);
}

}  // namespace octet::test
