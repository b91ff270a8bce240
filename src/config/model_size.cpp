#include "config/model_size.h"

namespace octet {
namespace {

int64_t layer_matmul_parameters(const ModelConfig& m) {
  const int64_t q = m.num_attention_heads * head_width(m), kv = key_value_heads(m) * head_width(m);
  return m.hidden_size * (2 * q + 2 * kv + 3 * m.intermediate_size);
}

int64_t count(const ModelConfig& m, int64_t vocab) {
  const int64_t d = head_width(m);
  int64_t layer = layer_matmul_parameters(m) + 2 * m.hidden_size;
  if (m.attention_bias) layer += (m.num_attention_heads + 2 * key_value_heads(m)) * d;
  if (m.use_qk_norm) layer += 2 * d;
  return (m.tie_word_embeddings ? 1 : 2) * vocab * m.hidden_size + m.num_hidden_layers * layer + m.hidden_size;
}

}  // namespace

int64_t key_value_heads(const ModelConfig& m) { return m.num_key_value_heads ? m.num_key_value_heads : m.num_attention_heads; }

int64_t head_width(const ModelConfig& m) {
  if (m.head_dim) return m.head_dim;
  return m.num_attention_heads ? m.hidden_size / m.num_attention_heads : 0;
}

int64_t padded_vocab_size(const ModelConfig& m) {
  return m.vocab_pad_multiple <= 1 ? m.vocab_size : (m.vocab_size + m.vocab_pad_multiple - 1) / m.vocab_pad_multiple * m.vocab_pad_multiple;
}

int64_t parameter_count(const ModelConfig& m) { return count(m, m.vocab_size); }
int64_t padded_parameter_count(const ModelConfig& m) { return count(m, padded_vocab_size(m)); }

int64_t matmul_parameter_count(const ModelConfig& m) {
  return m.num_hidden_layers * layer_matmul_parameters(m) + m.vocab_size * m.hidden_size;
}

double flops_per_token(const ModelConfig& m, int64_t seq_len) {
  const double attention =
      static_cast<double>(m.num_hidden_layers) * static_cast<double>(m.num_attention_heads * head_width(m)) * static_cast<double>(seq_len);
  return 6.0 * static_cast<double>(matmul_parameter_count(m)) + 6.0 * attention;
}

}  // namespace octet
