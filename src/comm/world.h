// World: the processes of a job, started by mpirun, srun or alone, and how they talk about themselves: launch, groups in host memory, faults.
//
// MPI is used by one thread (MPI_THREAD_FUNNELED): the process's first, which run_ranks() keeps; the program proper runs in a second one. Operations are queued to the first, which
// polls them, so they make progress while the program computes. A process that no launcher started, or that is the only one, never calls MPI. Under MPI, SIGPIPE is ignored.
#pragma once
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "comm/comm.h"
#include "core/error.h"

namespace octet {

// Of what ranks wait for until the program sets deadlines of its own: verifying a large checkpoint, or timing products, takes minutes.
inline constexpr double startup_deadline_s = 3600;

class World {
 public:
  struct Options {
    double deadline_s = 60;   // of an operation, from its start on this rank; set_deadline changes it
    // Of the environment, for run_ranks: how a launcher is known. Empty: there is none.
    std::function<const char*(const char* name)> environment{};
  };

  virtual ~World() = default;
  int rank() const { return rank_; }
  int size() const { return size_; }
  // Among the ranks of this machine (of one host name and shared memory), in the order of their ranks.
  int local_rank() const { return local_rank_; }
  int local_size() const { return local_size_; }
  // By rank.
  const std::vector<std::string>& hosts() const { return hosts_; }
  // All ranks, for group().
  std::vector<int> everyone() const {
    std::vector<int> ranks(static_cast<size_t>(size_));
    std::iota(ranks.begin(), ranks.end(), 0);
    return ranks;
  }

  // A group on host memory. Called by every rank in `ranks` (of this world, ascending; the caller is one of them), and by them in the same order. The world outlives its groups.
  virtual std::unique_ptr<Comm> group(const std::string& name, const std::vector<int>& ranks) = 0;
  // Host memory that a group of so many ranks takes for its reductions, as far as they need it: 2 MiB for each other rank,
  // 16 MiB from 9 to 129 ranks, 128 KiB for each other rank above.
  static size_t scratch_bytes(int ranks);
  // Of all operations that start from now on.
  virtual void set_deadline(double seconds) = 0;
  // Tells every other rank to end, with this code and a line that names this rank and `what`; returns when that is sent or after 2 seconds. For a rank that ends
  // by an error: the others would otherwise wait for it until their deadline.
  virtual void poison(ExitCode code, const std::string& what) = 0;

 protected:
  int rank_ = 0, size_ = 1, local_rank_ = 0, local_size_ = 1;
  std::vector<std::string> hosts_;
};

// Runs program(world) and returns what it returns. Under a launcher: starts MPI, checks that the launcher's number of ranks is MPI's (a binary started by a foreign launcher
// would otherwise run N times alone), and ends it when all ranks have come back. When `program` throws, poisons the others first (not for a shared Error, which they have too) and
// rethrows here: MPI is not ended then, since that could wait for ever, so the caller prints the error and ends the process by _exit(). Operations in flight write to their memory until then: a program
// that throws beside them keeps it (comm/agree.h: end_rank). Errors: Error(device) for a launch that can not work, with a hint.
// The process ends within run_ranks, with a line on stderr: deadline (an operation, a group that is not made, the end of the run), device (MPI reports an error), another rank's code (poison).
int run_ranks(const World::Options& options, const std::function<int(World&)>& program);

// n ranks as threads of this process, each with its world: tests. Rethrows the first exception; the other ranks' waiting operations throw Error(device) then
// instead of ending the process; one that passes its deadline throws Error(deadline). Members that do not call the same: Error(internal), which names both calls.
// delay_s: every operation takes at least so long from when all members have started it and the one before it in its group is done (tests of overlap; not in groups of one rank).
void run_local_ranks(int n, const std::function<void(World&)>& program, double delay_s = 0, const World::Options& options = {});

}  // namespace octet
