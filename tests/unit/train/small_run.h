// A tiny run for tests of the training layer: two layers, width 64, random tokens.
#pragma once
#include <cstring>
#include <string>
#include <vector>

#include "config/config_io.h"
#include "core/philox.h"
#include "source_dir.h"
#include "train/engine.h"

namespace octet::test {

// Named recipes, `custom` as small_config() describes it, and files of configs/recipes.
inline const std::vector<std::string>& all_recipes() {
  static const std::vector<std::string> names{"fp32", "bf16", "delayed", "tensorwise", "rowwise", "blockwise", "mxfp8", "custom", "blockwise_with_gw_rowwise"};
  return names;
}

inline RunConfig small_config(const std::string& recipe) {
  nlohmann::json j = {{"model",
                       {{"vocab_size", 61}, {"hidden_size", 64}, {"intermediate_size", 160}, {"num_hidden_layers", 2}, {"num_attention_heads", 4}, {"num_key_value_heads", 2}, {"head_dim", 32},
                        {"use_qk_norm", true}, {"attention_bias", true}, {"vocab_pad_multiple", 32}}},
                      {"data", {{"train", {{{"path", "unused"}}}}, {"seq_len", 32}}},
                      {"batch", {{"micro", 2}, {"global", 4}}},
                      {"optim", {{"lr", 1e-3}}},
                      {"eval", {{"interval", 1}}},
                      {"precision", {{"head", "fp8"}}},
                      {"run", {{"steps", 20}, {"threads", 2}}}};
  if (recipe == "blockwise_with_gw_rowwise") {
    j.merge_patch(load_config_file(source_dir() + "/configs/recipes/" + recipe + ".json"));
  } else {
    j["precision"]["recipe"] = recipe;
  }
  if (recipe == "custom") {
    // Everything the named recipes do not use: odd blocks, FP6, stochastic rounding.
    const nlohmann::json x = {{"format", "e2m3"}, {"block", {1, 48}}, {"scale", "pow2"}}, w = {{"format", "e3m2"}, {"block", {16, 24}}, {"rounding", "stochastic"}}, dy = {{"format", "e4m3"}, {"block", {1, 20}}, {"rounding", "stochastic"}};
    j["precision"]["custom"] = {{"fprop", {{"x", x}, {"w", w}}}, {"dgrad", {{"dy", dy}, {"w", w}}}, {"wgrad", {{"dy", dy}, {"x", x}}}};
  }
  RunConfig c = from_json(j);
  validate(c);
  return c;
}

inline data::StepBatch random_step(const RunConfig& c, int64_t step) {
  data::StepBatch out;
  const Philox rng(99, RngPurpose::init, "tokens", static_cast<uint64_t>(step));
  const int64_t n = c.batch.micro * c.data.seq_len;
  for (int64_t m = 0; m < c.batch.global / c.batch.micro; ++m) {
    data::MicroBatch b;
    b.samples = c.batch.micro;
    b.seq_len = c.data.seq_len;
    for (int64_t i = 0; i < n; ++i) {
      const uint32_t w = rng.word(static_cast<uint64_t>(m * n + i));
      b.tokens.push_back(static_cast<int32_t>(w % static_cast<uint32_t>(c.model.vocab_size)));
      b.labels.push_back(w % 11 == 0 ? -1 : static_cast<int32_t>((w >> 8) % static_cast<uint32_t>(c.model.vocab_size)));
      b.positions.push_back(static_cast<int32_t>(i % c.data.seq_len));
      b.document_start.push_back(0);
      b.valid_tokens += b.labels.back() >= 0;
    }
    out.valid_tokens += b.valid_tokens;
    out.micro.push_back(std::move(b));
  }
  return out;
}

inline std::vector<std::vector<float>> masters(Engine& e) {
  std::vector<std::vector<float>> out;
  for (const auto& p : e.model().params()) out.emplace_back(p->master.as<float>(), p->master.as<float>() + p->master.elements());
  return out;
}

inline std::vector<double> losses(Engine& e, const RunConfig& c, int64_t from, int64_t to) {
  std::vector<double> out;
  for (int64_t s = from; s < to; ++s) out.push_back(e.step(random_step(c, s), s).loss);
  return out;
}

}  // namespace octet::test
