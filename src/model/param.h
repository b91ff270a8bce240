// Param: the one owner of a trained tensor: FP32 master, BF16 working copy, FP32 gradient and the two Adam moments.
//
// Two of them have compact forms (config optim.master_weights, optim.moments). A master may be kept as its BF16 working copy and the 16 bits below it
// (numerics/master.h: nothing is lost); moments may be BF16, rounded stochastically (ops/optimizer.h).
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "core/arena.h"
#include "ops/machine.h"

namespace octet {

enum class Init : uint8_t { normal, normal_output, ones, zeros };  // normal_output: scaled by 1/sqrt(2 L) when the config says so

struct Param {
  std::string name;        // Hugging Face name; key of initialization and checkpoints
  Shape shape;             // padded: embedding and head rows to vocab_pad_multiple
  int64_t logical_rows;    // rows that exist in a checkpoint; padded rows are and stay zero
  Init init;
  bool decay;              // weight decay: matrices yes, norms and biases no

  Tensor master;                 // f32; empty when `remainder` is there
  Tensor remainder;              // u16; empty when `master` is there
  Tensor grad;                   // f32
  Tensor exp_avg, exp_avg_sq;    // f32 or bf16
  Tensor working;                // what GEMMs and norms read: bf16, or master itself for the recipe fp32

  int64_t logical_elements() const { return logical_rows * shape.elements() / shape[0]; }
};

struct StateFormats {
  Dtype compute = Dtype::bf16;       // of working: bf16 or f32
  bool remainder = false;            // masters as working copy and remainder; compute is bf16
  Dtype moments = Dtype::f32;        // f32 or bf16
};

// states: where the optimizer's own tensors go, those that no other operator reads: remainders, masters beside working copies, moments. It may be `arena`.
void allocate(Param& p, Arena& arena, Arena& states, const StateFormats& formats);

// The FP32 values of a parameter's state as host arrays of its (padded) shape, whatever its form and place. Writing a master leaves the working copy to
// Model::refresh_weights() unless they are one; ties are resolved (numerics/master.h), so that every form holds the same values.
void write_master(Machine& machine, const Param& p, const std::function<void(float*)>& fill);
void read_master(Machine& machine, const Param& p, const std::function<void(const float*)>& use);
void write_moment(Machine& machine, const Tensor& moment, const std::function<void(float*)>& fill);
void read_moment(Machine& machine, const Tensor& moment, const std::function<void(const float*)>& use);

}  // namespace octet
