// MpiTransfer: the messages of one operation of an MPI group, as a state machine that is polled. Internal to comm/, used by MPI's thread only.
//
// An operation is one or two phases. A phase is a set of streams, each all the bytes that go to or come from one rank: segments of several tensors one behind the other, cut into chunks with
// at most two in flight. A chunk that lies in several segments is still one message, of a datatype that says where they are. Chunks of contributions to a sum land in scratch (two sets of one
// chunk a peer) and are added in the order of the ranks when a set is complete, while the next fills.
// Both ends of a stream know its size, so nothing but the bytes is sent. Chunks keep MPI's counts small: tensors may be of any size.
#pragma once
#include <mpi.h>

#include <cstddef>
#include <string>
#include <vector>

#include "comm/collective.h"

namespace octet {

// Throws Error(device) with MPI's own words when `rc` is not MPI_SUCCESS.
void mpi_must(int rc, const char* call);

struct MpiLink {
  MPI_Comm comm = MPI_COMM_NULL;
  int rank = 0, size = 1;
  std::byte* scratch = nullptr;   // 2 (size - 1) chunks
};

// 1 MiB for up to 9 ranks, then less, so that a group's scratch stays at 16 MiB; 64 KiB at least.
int64_t mpi_chunk_bytes(int ranks);

class MpiTransfer {
 public:
  // Posts the first messages. `ticket` is the operation's number in the group, the same on all members.
  MpiTransfer(const MpiLink& link, const Collective& call, uint64_t ticket);
  MpiTransfer(const MpiTransfer&) = delete;
  MpiTransfer& operator=(const MpiTransfer&) = delete;

  // Takes in what has arrived or left; true when something has.
  bool poll();
  bool done() const { return phase_ == phases_.size(); }
  int64_t sent() const { return sent_; }   // bytes
  // Takes back the receives that nothing has been matched with. The operation can not be continued.
  void cancel();
  // The ranks of the group whose messages are outstanding, those that have to send first.
  std::vector<int> waiting_for() const;

 private:
  struct Segment {
    std::byte* data;
    int64_t bytes;
  };
  using Segments = std::vector<Segment>;   // none empty
  static int64_t bytes_of(const Segments& segments);
  // Bytes [first, first + count) of segments one behind the other.
  static Segments cut(const Segments& segments, int64_t first, int64_t count);

  struct Stream {
    int peer;
    bool receive;
    Segments memory;
    int64_t bytes;
    std::byte* scratch = nullptr;   // contributions: the peer's chunk in the first set, instead of memory
    int64_t posted = 0, finished = 0;   // chunks
    bool arrived[2] = {false, false};   // contributions: the chunk in each set
  };
  struct Phase {
    std::vector<Stream> streams;
    Segments target;   // what contributions are added to: this rank's own, in place
    int64_t target_bytes = 0;
    bool target_is_sent = false;   // it must not change before all has left
  };

  void find_pieces();
  void plan_gather();
  void plan_reduce_scatter();
  void plan_whole_reduce();
  void plan_broadcast();
  void add(Phase& phase, int peer, bool receive, const Segments& memory);
  void add_contributions(Phase& phase, const Segments& target);

  void begin_phase();
  void finish_phases();
  void post(size_t stream);
  void post_message(Stream& s, const Segments& memory, int tag, MPI_Request& request);
  void take(size_t slot, MPI_Status& status);
  bool reduce_next();
  int64_t chunks(int64_t bytes) const { return (bytes + chunk_ - 1) / chunk_; }
  int64_t length(const Stream& s, int64_t chunk) const;

  MpiLink link_;
  Collective call_;
  uint64_t ticket_;
  int64_t chunk_;
  Segments whole_;                 // all tensors
  std::vector<Segments> pieces_;   // by rank: what is given, or even pieces of all tensors one behind the other
  std::vector<Phase> phases_;
  size_t phase_ = 0;
  std::vector<MPI_Request> requests_;   // two a stream: chunk c in slot c % 2
  std::vector<int> indices_;
  std::vector<MPI_Status> statuses_;
  int64_t unfinished_ = 0, reduced_ = 0, to_reduce_ = 0;   // chunks of the phase
  int64_t sent_ = 0;
};

}  // namespace octet
