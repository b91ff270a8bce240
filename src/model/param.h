// Param: the one owner of a trained tensor: FP32 master, BF16 working copy, FP32 gradient and the two Adam moments.
#pragma once
#include <string>
#include <vector>

#include "core/arena.h"

namespace octet {

enum class Init : uint8_t { normal, normal_output, ones, zeros };  // normal_output: scaled by 1/sqrt(2 L) when the config says so

struct Param {
  std::string name;        // Hugging Face name; key of initialization and checkpoints
  Shape shape;             // padded: embedding and head rows to vocab_pad_multiple
  int64_t logical_rows;    // rows that exist in a checkpoint; padded rows are and stay zero
  Init init;
  bool decay;              // weight decay: matrices yes, norms and biases no

  Tensor master, grad, exp_avg, exp_avg_sq;  // f32
  Tensor working;                            // what GEMMs and norms read: bf16, or master itself for the recipe fp32

  int64_t logical_elements() const { return logical_rows * shape.elements() / shape[0]; }
};

// Allocates a parameter's tensors. compute: bf16 or f32.
inline void allocate(Param& p, Arena& arena, Dtype compute) {
  p.master = arena.alloc(Dtype::f32, p.shape);
  p.grad = arena.alloc(Dtype::f32, p.shape);
  p.exp_avg = arena.alloc(Dtype::f32, p.shape);
  p.exp_avg_sq = arena.alloc(Dtype::f32, p.shape);
  p.working = compute == Dtype::f32 ? p.master : arena.alloc(Dtype::bf16, p.shape);
}

}  // namespace octet
