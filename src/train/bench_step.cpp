#include "train/bench_step.h"

#include <algorithm>
#include <chrono>
#include <memory>

#include "config/config_io.h"
#include "config/model_size.h"
#include "core/philox.h"
#include "cpu/threaded_sgemm.h"
#include "train/engine.h"

namespace octet {
namespace {

struct Shape3 {
  int64_t m, n, k, count;
};

// The products of one micro-batch: forward, input gradient and weight gradient of every projection.
std::vector<Shape3> gemm_shapes(const RunConfig& c) {
  const ModelConfig& m = c.model;
  const int64_t t = c.batch.micro * c.data.seq_len, layers = m.num_hidden_layers, a = m.num_attention_heads * m.head_dim, kv = m.num_key_value_heads * m.head_dim;
  std::vector<Shape3> shapes;
  const auto linear = [&](int64_t n, int64_t k, int64_t count) {
    shapes.push_back({t, n, k, count});
    shapes.push_back({t, k, n, count});
    shapes.push_back({n, k, t, count});
  };
  linear(a, m.hidden_size, layers);
  linear(kv, m.hidden_size, 2 * layers);
  linear(m.hidden_size, a, layers);
  linear(m.intermediate_size, m.hidden_size, 2 * layers);
  linear(m.hidden_size, m.intermediate_size, layers);
  linear(padded_vocab_size(m), m.hidden_size, 1);
  return shapes;
}

}  // namespace

double now_ms() { return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v.size() % 2 ? v[v.size() / 2] : 0.5 * (v[v.size() / 2 - 1] + v[v.size() / 2]);
}

data::StepBatch random_batch(const RunConfig& c) {
  data::StepBatch step;
  const Philox rng(c.run.seed, RngPurpose::init, "bench.tokens");
  const int64_t n = c.batch.micro * c.data.seq_len;
  for (int64_t m = 0; m < c.batch.global / c.batch.micro; ++m) {
    data::MicroBatch b;
    b.samples = c.batch.micro;
    b.seq_len = c.data.seq_len;
    b.valid_tokens = n;
    for (int64_t i = 0; i < n; ++i) {
      const auto draw = [&](uint64_t which) { return static_cast<int32_t>(rng.word(2 * static_cast<uint64_t>(m * n + i) + which) % static_cast<uint64_t>(c.model.vocab_size)); };
      b.tokens.push_back(draw(0));
      b.labels.push_back(draw(1));
      b.positions.push_back(static_cast<int32_t>(i % c.data.seq_len));
      b.document_start.push_back(0);
    }
    step.valid_tokens += n;
    step.micro.push_back(std::move(b));
  }
  return step;
}

data::StepBatch own_part(const data::StepBatch& whole, const Layout& layout) {
  data::StepBatch own;
  for (auto m = static_cast<size_t>(layout.dp_rank()); m < whole.micro.size(); m += static_cast<size_t>(layout.dp())) {
    own.micro.push_back(whole.micro[m]);
    own.valid_tokens += whole.micro[m].valid_tokens;
  }
  return own;
}

StepBench bench_step(const RunConfig& config, const std::vector<std::string>& recipes, int rounds) {
  StepBench bench;
  const data::StepBatch batch = random_batch(config);
  const std::vector<Shape3> shapes = gemm_shapes(config);
  const auto micro_batches = static_cast<double>(config.batch.global / config.batch.micro);
  std::vector<std::unique_ptr<Engine>> engines;
  std::vector<std::string> names{"bf16"};
  names.insert(names.end(), recipes.begin(), recipes.end());
  for (const std::string& name : names) {
    RunConfig c = config;
    c.precision.recipe = timed_recipe(name);
    c.log.stats_interval = name.ends_with(with_statistics) ? 1 : 0;
    validate(c);
    engines.push_back(std::make_unique<Engine>(c));
    bench.steps.push_back({name, {}, 0, 0, 0, 0});
  }
  bench.threads = engines.front()->machine().pool().threads();
  bench.tokens = config.batch.global * config.data.seq_len;
  for (const Shape3& s : shapes) bench.gemm_gflop += 2e-9 * micro_batches * static_cast<double>(s.m) * static_cast<double>(s.n) * static_cast<double>(s.k) * static_cast<double>(s.count);

  std::vector<double> shares;
  std::vector<std::vector<double>> ratios(engines.size());
  for (int round = -1; round < rounds; ++round) {  // round -1 warms caches and page tables
    double sgemm = 0;
    for (const Shape3& s : shapes) sgemm += micro_batches * static_cast<double>(s.count) * cpu::time_threaded_sgemm_ms(static_cast<int>(bench.threads), s.m, s.n, s.k);
    std::vector<double> ms;
    for (auto& e : engines) {
      const double begin = now_ms();
      e->step(batch, round + 1);
      ms.push_back(now_ms() - begin);
    }
    if (round < 0) continue;
    bench.sgemm_ms.push_back(sgemm);
    shares.push_back(sgemm / ms[0]);
    for (size_t i = 0; i < ms.size(); ++i) {
      bench.steps[i].ms.push_back(ms[i]);
      ratios[i].push_back(ms[i] / ms[0]);
    }
  }
  bench.sgemm_median_ms = median(bench.sgemm_ms);
  bench.bf16_share = median(shares);
  for (size_t i = 0; i < bench.steps.size(); ++i) {
    StepTiming& t = bench.steps[i];
    t.median_ms = median(t.ms);
    t.min_ms = *std::min_element(t.ms.begin(), t.ms.end());
    t.max_ms = *std::max_element(t.ms.begin(), t.ms.end());
    t.ratio_to_bf16 = median(ratios[i]);
  }
  return bench;
}

}  // namespace octet
