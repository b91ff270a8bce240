// Operator benchmarks on the machine of a config: matrix products, quantization and attention at the shapes of one micro-batch of its model.
//
// Each figure is the median over rounds of the time of one call; a round repeats the call until it takes 20 ms and waits for the device once. Operands are random
// (zeros run faster than data does). Rates are shares of what the machine does at all, measured beside them: BF16 products, and the bandwidth of a copy.
#pragma once
#include <string>
#include <vector>

#include "config/run_config.h"

namespace octet {

struct OpTiming {
  std::string group, name;      // group: what ratios are taken within
  double ms = 0, min_ms = 0, max_ms = 0;
  double flops = 0, bytes = 0;  // of one call; one of them is 0
  double ratio = 0;             // rate over that of the group's reference
};

struct OpBench {
  std::string machine, reference;   // reference: what ratios are over
  std::vector<OpTiming> rows;
};

// The products of attn.qkv (q), attn.out, mlp.gate_up (gate), mlp.down: fprop, dgrad and wgrad in BF16 and in each recipe.
OpBench bench_gemm(const RunConfig& config, const std::vector<std::string>& recipes, int rounds);
// Quantization of a [tokens, intermediate] matrix to row image, column image and both in each recipe; norm and SwiGLU with and without images.
OpBench bench_quantize(const RunConfig& config, const std::vector<std::string>& recipes, int rounds);
// Attention forward and backward, causal; FLOPs of the causal half: 2 S^2 d a head forward, 5 S^2 d backward.
OpBench bench_attention(const RunConfig& config, int rounds);

}  // namespace octet
