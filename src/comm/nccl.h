// NcclComm: the operations of a group on the memory of GPUs, one a rank, through NCCL. Only in builds with CUDA and NCCL (OCTET_HAVE_NCCL).
//
// Operations run on a stream of their own: each waits for the compute stream's work submitted before it, and wait() makes the compute stream (not the host) wait for it. Not within a recording of a
// CUDA graph. One thread issues the calls of all groups, in the same order on all ranks.
//
// Each group has an id of its own, carried by its group on the host. (ncclCommSplit would want a communicator of all ranks first, which nothing else uses: 570 MiB of each GPU.)
//
// A list is one group of NCCL's calls. Pieces of one size are NCCL's own reduce-scatter and all-gather; others are grouped ncclReduce and ncclBroadcast. Bytes that are only moved are moved as bytes. Maxima of f32 and f64 are taken on the
// bits as unsigned integers, so that NaN counts: they need values without a sign (absolute maxima). Sums are in NCCL's order, of BF16 rounded at
// each addition: the same for the same layout. NVLS, which adds in the switch, is switched off by the program unless NCCL_NVLS_ENABLE says otherwise. Traffic counts by comm.h's formulas, an all-reduce always in pieces; which way NCCL sends is its own choice.
//
// A thread watches operations: each has the deadline from when the compute stream's work before it and the operation before it are done. It and asynchronous errors of NCCL end the process as in world.h, after
// World::poison (deadline: 31, NCCL or CUDA: 32). A group that can not be finalized ends it likewise. Calls of ours throw Error(device).
#pragma once
#include <memory>

#include "comm/world.h"

struct CUstream_st;

namespace octet {

// NCCL's version as it was loaded: "2.28.9".
std::string nccl_version();

class NcclComm : public Comm {
 public:
  // Collective over `host`, the same group on host memory: carries NCCL's id, gives rank, size and name. The caller's current CUDA device is the group's; `compute` is a stream of it. `world` is told
  // of faults and outlives this.
  NcclComm(World& world, Comm& host, CUstream_st* compute, double deadline_s);
  // Waits for what was started, unless it is an exception that destroys it.
  ~NcclComm() override;
  NcclComm(const NcclComm&) = delete;
  NcclComm& operator=(const NcclComm&) = delete;

  Ticket start(const Collective& call) override;
  void wait(Ticket ticket) override;
  TrafficTable traffic() const override;

  void set_deadline(double seconds) override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace octet
