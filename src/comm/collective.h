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
  Tensor x;
  Reduce reduce = Reduce::sum;
  Pieces pieces;   // of reduce_scatter and all_gather
  int root = 0;    // of broadcast
};

// "all_reduce sum of 128 f32 (512 bytes)".
std::string describe(const Collective& call);

// Types, sizes and pieces: Error(internal) that names the group.
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
    Traffic& t = table_[{name(call.kind), call.x.dtype}];
    ++t.calls;
    t.bytes += bytes;
  }
  const TrafficTable& table() const { return table_; }

 private:
  TrafficTable table_;
};

}  // namespace octet
