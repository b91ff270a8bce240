// The run that tests of whole steps on the device make: a few steps of a tiny model on the host, more of a somewhat larger one on a GPU.
#pragma once
#include <string>
#include <vector>

#include "model/param.h"
#include "unit/train/small_run.h"

namespace parity {

using namespace octet;

#ifdef OCTET_SIMT
inline constexpr int64_t many_steps = 2, width = 64, seq_len = 32, micro = 2;
#else
inline constexpr int64_t many_steps = 20, width = 128, seq_len = 128, micro = 16;
#endif

// All extents are multiples of 16, as native FP8 products want them. The stable regime: lr 5e-4 behind a warm-up.
inline RunConfig config(const std::string& recipe, const std::string& device) {
  RunConfig c = test::small_config(recipe);
  c.model.hidden_size = width;
  c.model.head_dim = 32;
  c.model.num_attention_heads = width / 32;
  c.model.num_key_value_heads = width / 64;
  c.model.intermediate_size = 2 * width;
  c.model.vocab_size = 250;
  c.model.vocab_pad_multiple = 128;
  c.data.seq_len = seq_len;
  c.batch.micro = micro;
  c.batch.global = 2 * micro;
  c.precision.head = "bf16";
  c.run.threads = 0;
  c.model.max_position_embeddings = 0;
  c.optim.lr = 5e-4;
  c.sched.warmup_steps = 5;
  c.run.steps = 100;
  c.sched.decay_steps.reset();
  c.precision.amax_history_len = 16;
  c.precision.emulate = recipe == "mxfp8" || recipe == "custom";
  c.run.device = device;
  c.run.gemm_choice = "heuristic";
  c.log.stats_interval = 2;
  validate(c);
  return c;
}

inline std::vector<std::vector<float>> states(Engine& e) {
  std::vector<std::vector<float>> out;
  for (const auto& p : e.model().params()) {
    const auto keep = [&](const float* w) { out.emplace_back(w, w + p->shape.elements()); };
    read_master(e.machine(), *p, keep);
    read_moment(e.machine(), p->exp_avg, keep);
    read_moment(e.machine(), p->exp_avg_sq, keep);
  }
  return out;
}

}  // namespace parity
