// Comm: collective operations of a named group of ranks.
//
// Every member calls the same operations with the same sizes in the same order. An operation is started, runs beside what the caller does next, and is finished
// by wait(); until then its memory belongs to it. Operations of one group run one behind the other, those of different groups independently. All work in
// place, on dense memory of the place that the backend serves: the host's, or a GPU's. An operation's fixed cost (a turn in the group's order, a message to each rank) is
// that of many elements: tensors that become ready together are given to one operation, as a list.
//
// Sums are made in the order of the ranks, ((x0 + x1) + x2) + ..., in the tensor's own type (bf16: in FP32, rounded once), and once for all members: `local` and `mpi` give the same bits, on every rank,
// and a list the bits of its tensors one by one.
// NCCL's order is its own, the same whenever the layout is.
//
// Backends: local (threads of a process: tests), mpi (host buffers; also carries a GPU's by staging), nccl. Each operation has a deadline (World::Options): a rank
// that waits longer ends its process with ExitCode::deadline and a message that names rank, group, operation and sequence number, since a group that lost a
// member can not be repaired from within. A lost transport ends it with ExitCode::device.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/tensor.h"

namespace octet {

enum class Reduce : uint8_t { sum, max };

// A tensor cut into one piece a rank, in their order: rank r has the elements [begin[r], begin[r + 1]), possibly none.
struct Pieces {
  std::vector<int64_t> begin;   // size() + 1 numbers from 0 to the tensor's elements
  int64_t first(int rank) const { return begin[static_cast<size_t>(rank)]; }
  int64_t count(int rank) const { return begin[static_cast<size_t>(rank) + 1] - first(rank); }
};

// Pieces whose sizes differ by at most one element, the longer ones first.
Pieces even_pieces(int64_t elements, int ranks);

struct TensorInPieces {
  Tensor x;
  Pieces pieces;
};

// What a member sent, by operation and element type: calls, and bytes of tensors that left this rank for others. A list is one call. In host memory, for tensors of T bytes together, of
// which this rank's pieces have P, each piece goes straight to whom it concerns:
//   all_gather      P (n - 1)                         (own piece to all others)
//   reduce_scatter  T - P                             (each other rank its piece, unsummed)
//   all_reduce      T (n - 1) up to 64 KiB            (all of it to all others, one round)
//                   T - P + P (n - 1) above           (a reduce-scatter and a gather of even pieces of the list's tensors one behind the other: 2 T (n - 1) / n)
//   broadcast       T (n - 1) of the root up to 64 KiB
//                   P (n - 1) above, and the root T - P more (its pieces scattered, then gathered)
struct Traffic {
  int64_t calls = 0, bytes = 0;
};
using TrafficTable = std::map<std::pair<std::string, Dtype>, Traffic>;   // ("all_gather", e4m3)

struct Collective;   // comm/collective.h

class Comm {
 public:
  using Ticket = uint64_t;   // sequence number of an operation in its group, from 1

  virtual ~Comm() = default;
  // Of operations that start from now on. Groups on host memory have their world's (World::set_deadline), and take no notice.
  virtual void set_deadline(double /*seconds*/) {}
  const std::string& name() const { return name_; }   // "dp", "tp", ...: in messages and profilers
  int rank() const { return rank_; }                  // in this group
  int size() const { return size_; }

  // Of one tensor, or of a list: at least one, all of one type, any of them and any pieces possibly empty, none overlapping another. A list is one operation, with one deadline.
  // x = sum or maximum over the ranks of x. sum: f32, bf16, f64, i64; max: f32, f64, i64 (NaN is above everything).
  Ticket all_reduce(const std::vector<Tensor>& x, Reduce op);
  Ticket all_reduce(const Tensor& x, Reduce op);
  // x's own piece = sum over the ranks of it; the other pieces are left undefined. f32 or bf16.
  Ticket reduce_scatter(const std::vector<TensorInPieces>& x);
  Ticket reduce_scatter(const Tensor& x, const Pieces& pieces);
  // Every piece of x = that of the rank it belongs to. Any type; bytes are not looked at.
  Ticket all_gather(const std::vector<TensorInPieces>& x);
  Ticket all_gather(const Tensor& x, const Pieces& pieces);
  // x = root's x.
  Ticket broadcast(const Tensor& x, int root);
  // Any of these, as data: what a backend implements.
  virtual Ticket start(const Collective& call) = 0;
  // The caller's following work (on a GPU: of its stream) sees the result of the operation and of all before it. Waiting twice is allowed.
  virtual void wait(Ticket ticket) = 0;

  virtual TrafficTable traffic() const = 0;

 protected:
  Comm(std::string name, int rank, int size) : name_(std::move(name)), rank_(rank), size_(size) {}

 private:
  std::string name_;
  int rank_, size_;
};

// Every rank's text, by rank; host memory. Waits. (By value: otherwise std::exchange, found by the argument, would match a std::string better.)
std::vector<std::string> exchange(Comm& comm, std::string mine);
// The sum or the maximum of one number over the ranks; host memory. Waits.
int64_t sum_of(Comm& comm, int64_t mine);
int64_t max_of(Comm& comm, int64_t mine);
// Returns when every rank has called it.
void barrier(Comm& comm);

}  // namespace octet
