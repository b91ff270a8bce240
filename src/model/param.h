// Param: the one owner of a trained tensor: FP32 master, BF16 working copy, FP32 gradient and the two Adam moments.
//
// With ZeRO (optim/data_parallel.h) the masters and moments here are those of some rows, `own`, and the working copy and the gradient of all rows may be lent: memory that
// parameters of other units use too, filled when it is their turn. Without it `own` is all rows.
//
// With tensor parallelism (model/tensor_parallel.h) `shape` is this rank's part of a larger tensor, or one that other ranks have too.
//
// Two of them have compact forms (config optim.master_weights, optim.moments). A master may be kept as its BF16 working copy and the 16 bits below it
// (numerics/master.h: nothing is lost); moments may be BF16, rounded stochastically (ops/optimizer.h).
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "core/arena.h"
#include "core/place.h"
#include "ops/machine.h"

namespace octet {

enum class Init : uint8_t { normal, normal_output, ones, zeros };  // normal_output: scaled by 1/sqrt(2 L) when the config says so

// Rows of a tensor's first axis; of a vector, elements.
struct RowRange {
  int64_t first = 0, count = 0;
};

// What the ranks of tp have of a parameter's gradient when a micro-batch is done.
enum class TpGradient : uint8_t {
  complete,   // each all of it that its part of the parameter has
  sum_tp      // addends, of a parameter that all of them have
};

struct Param {
  std::string name;        // Hugging Face name; key of initialization and checkpoints
  Shape shape;             // padded: embedding and head rows to vocab_pad_multiple
  int64_t logical_rows;    // rows that exist in a checkpoint; padded rows are and stay zero
  Init init;
  bool decay;              // weight decay: matrices yes, norms and biases no

  RowRange own{};                // rows whose state this rank keeps

  Shape whole{};                           // the tensor that `shape` is a part of, as in a checkpoint: without padding
  int64_t first_row = 0, first_col = 0;    // where the part lies in it
  int copies = 1, copy = 0;                // ranks of tp that have this part, and this one's number among them
  TpGradient tp_gradient = TpGradient::complete;

  bool by_codes = false;         // of its working copy a rank has the own rows only: the others come as codes and scales (optim/weight_codes.h)

  Tensor master{};                     // own rows, f32; empty when `remainder` is there
  Tensor remainder{};                  // own rows, u16; empty when `master` is there
  Tensor exp_avg{}, exp_avg_sq{};      // own rows, f32 or bf16
  Tensor grad{}, own_grad{};           // f32; own_grad: part of grad, or by itself where grad is lent
  Tensor working{}, own_working{};     // what GEMMs and norms read: bf16, or f32 for the recipe fp32, whose own_working is the master

  int64_t row_elements() const { return shape.elements() / shape[0]; }
  // Place in the whole tensor of this part from a row on; a vector is one row.
  MatrixPlace place(int64_t row = 0) const { return shape.rank() == 1 ? MatrixPlace{0, first_row + row, whole[0]} : MatrixPlace{first_row + row, first_col, whole[1]}; }
  int64_t own_elements() const { return own.count * row_elements(); }
  Shape own_shape() const { return shape.rank() == 1 ? Shape{own.count} : Shape{own.count, shape[1]}; }
  // The own rows of a tensor of all rows.
  Tensor own_part(const Tensor& all) const;
};

struct StateFormats {
  Dtype compute = Dtype::bf16;       // of working: bf16 or f32
  bool remainder = false;            // masters as working copy and remainder; compute is bf16
  Dtype moments = Dtype::f32;        // f32 or bf16
};

struct ParamArenas {
  Arena* lasting;                // gradients and working copies
  Arena* states;                 // what no other operator than the optimizer reads: remainders, masters beside working copies, moments; may be `lasting`
  Arena* lent_grads = nullptr;   // of gradients, where they are lent
  Arena* lent_working = nullptr;
};
void allocate(Param& p, const ParamArenas& arenas, const StateFormats& formats);

// The FP32 values of a parameter's own rows as host arrays, whatever their form and place. Writing a master leaves the working copy to
// Model::refresh_working() unless they are one; ties are resolved (numerics/master.h), so that every form holds the same values.
void write_master(Machine& machine, const Param& p, const std::function<void(float*)>& fill);
void read_master(Machine& machine, const Param& p, const std::function<void(const float*)>& use);
void write_moment(Machine& machine, const Tensor& moment, const std::function<void(float*)>& fill);
void read_moment(Machine& machine, const Tensor& moment, const std::function<void(const float*)>& use);

}  // namespace octet
