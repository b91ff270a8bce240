// The table of rotary cosines and sines that ops/rope.h reads.
#pragma once
#include <cstdint>
#include <vector>

#include "config/run_config.h"
#include "core/tensor.h"

namespace octet {

// Number of rotated dimensions of a head: partial_rotary_factor * head_dim.
int64_t rotary_dim(const ModelConfig& m);

// Inverse frequencies [rotary_dim / 2], radians a position. rope_type "llama3" leaves short wavelengths, divides long ones by
// `factor`, and interpolates between (the bands of Llama 3.1; Hugging Face's modeling_rope_utils has the same formula).
std::vector<double> rope_frequencies(const ModelConfig& m);

// Fills table [positions, rotary_dim] f32: cosines, then sines; angles are formed in double.
void fill_rope_table(const ModelConfig& m, const Tensor& table);

}  // namespace octet
