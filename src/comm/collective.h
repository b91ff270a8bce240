// Collective: one call of a group's operation as data, and what every backend must agree on: which calls make sense, which belong together, what is sent.
// Internal to comm/.
#pragma once
#include <optional>
#include <string>

#include "comm/comm.h"

namespace octet {

enum class CollectiveKind : uint8_t { all_reduce, reduce_scatter, all_gather, broadcast };
const char* name(CollectiveKind kind);

struct Collective {
  CollectiveKind kind = CollectiveKind::all_reduce;
  std::vector<TensorInPieces> x;   // pieces: of reduce_scatter and all_gather
  Reduce reduce = Reduce::sum;
  int root = 0;                    // of broadcast

  bool in_pieces() const { return kind == CollectiveKind::reduce_scatter || kind == CollectiveKind::all_gather; }
  Dtype dtype() const { return x.front().x.dtype; }
  // Of all tensors together, and of a rank's pieces of them.
  int64_t elements() const;
  int64_t bytes() const { return elements() * static_cast<int64_t>(size_bytes(dtype())); }
  int64_t count(int rank) const;
};

// "all_reduce sum of 128 f32 (512 bytes)", "all_gather of 9 tensors, 1234 bf16 (2468 bytes)".
std::string describe(const Collective& call);

// Tensors, types, sizes and pieces: Error(internal) that names the group.
void check_collective(const Collective& call, const std::string& group, int size);

// Whether two members' calls are the same operation.
bool same_operation(const Collective& a, const Collective& b);

// An all-reduce or a broadcast of at most so many bytes goes whole from rank to rank; larger ones in pieces (comm.h).
inline constexpr int64_t kWholeBytes = 64 << 10;

// Bytes that leave `rank` for others. comm.h has the formulas.
int64_t sent_bytes(const Collective& call, int rank, int size);

// What host memory's backends count.
class TrafficCount {
 public:
  void add(const Collective& call, int64_t bytes) {
    Traffic& t = table_[{name(call.kind), call.dtype()}];
    ++t.calls;
    t.bytes += bytes;
  }
  const TrafficTable& table() const { return table_; }

 private:
  TrafficTable table_;
};

}  // namespace octet
