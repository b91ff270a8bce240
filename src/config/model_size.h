// Counting parameters and floating-point operations of a model from its config alone.
#pragma once
#include <cstdint>

#include "config/run_config.h"

namespace octet {

// Heads as validate() derives them, for configs that have not been through it.
int64_t key_value_heads(const ModelConfig& m);
int64_t head_width(const ModelConfig& m);

// vocab_size rounded up to vocab_pad_multiple: rows of the embedding and head matrices in memory.
int64_t padded_vocab_size(const ModelConfig& m);

// Parameters, without vocabulary padding: the figure that model cards publish. A tied head counts once.
//   per layer  H A d + 2 H K d + A d H  (+ (A + 2 K) d with attention_bias)  (+ 2 d with use_qk_norm)  + 3 H I + 2 H
//   total      V H (twice when untied) + layers + H
int64_t parameter_count(const ModelConfig& m);
// The same with padded vocabulary rows: what is stored and updated.
int64_t padded_parameter_count(const ModelConfig& m);

// Weights that take part in matrix products: all linear layers and the head (tied or not, without padding); the embedding is
// a lookup and does not count.
int64_t matmul_parameter_count(const ModelConfig& m);

// "model_causal": floating-point operations of forward and backward per token,
//   6 N_matmul + 6 L A d S
// with N_matmul = matmul_parameter_count(), L layers, A heads of width d, S = seq_len. The second term is the causal half of
// 12 L A d S (scores and weighted sum, each 2 S A d forward, three times that with backward). No recomputation is counted.
double flops_per_token(const ModelConfig& m, int64_t seq_len);

}  // namespace octet
