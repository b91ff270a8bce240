// The local backend: ranks are threads of one process, an operation is done by a thread of its group. Internal to comm/: world.h starts it.
//
// A group's thread takes its operations in order: waits until all members have started the front one, sleeps for the artificial delay, then moves the data. So a caller that reads too early,
// or writes to what an operation still owns, gets wrong results whenever there is a delay. A reduce-scatter fills the pieces that are left undefined with NaN.
#pragma once
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <tuple>

#include "comm/collective.h"
#include "comm/world.h"

namespace octet {

std::string host_name();

class LocalGroup;

// What the ranks of one run_local_ranks share. One mutex for all of it, since tests have few ranks.
struct LocalJob {
  std::mutex mutex;
  std::condition_variable changed;   // anything below, or in a group
  double delay_s = 0;
  int failed_rank = -1;              // the first that failed
  std::string failure;
  // By name, ranks, and how many-th such group.
  std::map<std::tuple<std::string, std::vector<int>, int>, std::weak_ptr<LocalGroup>> groups;

  void fail(int rank, const std::string& what);
};

// What the members of one group share.
class LocalGroup {
 public:
  LocalGroup(LocalJob& job, std::string name, std::vector<int> ranks);
  ~LocalGroup();

  // Returns the operation's number. `member` is a rank of the group.
  uint64_t start(int member, const Collective& call, double deadline_s);
  void wait(int member, uint64_t ticket);
  // A member's last call; waits for what it started, unless it leaves by an exception.
  void leave(int member);

  const std::vector<int>& ranks() const { return ranks_; }

 private:
  using Time = std::chrono::steady_clock::time_point;
  struct Pending {
    Collective call;             // of the first to start it
    int first = 0;               // who that was
    std::vector<std::vector<TensorInPieces>> x;   // by member
    std::vector<double> deadline_s;
    std::vector<Time> begin;
    std::vector<char> started;
    int missing = 0;
  };
  void work();
  void execute(const Pending& op) const;
  void execute(const Pending& op, size_t tensor) const;
  void fail_if_hopeless() const;
  Error late(const Pending& op, int member) const;

  LocalJob& job_;
  std::string name_;
  std::vector<int> ranks_;
  std::deque<Pending> pending_;        // the front is operation done_ + 1
  uint64_t done_ = 0;
  std::vector<uint64_t> started_;      // by member
  std::optional<Error> broken_;        // the members do not call the same
  Time done_at_{};                     // the last operation
  bool executing_ = false, stop_ = false;
  std::thread thread_;
};

class LocalWorld : public World {
 public:
  LocalWorld(LocalJob& job, int rank, int size, const Options& options);
  std::unique_ptr<Comm> group(const std::string& name, const std::vector<int>& ranks) override;
  void set_deadline(double seconds) override { deadline_s_ = seconds; }
  void poison(ExitCode code, const std::string& what) override;
  double deadline_s() const { return deadline_s_; }

 private:
  LocalJob& job_;
  double deadline_s_;
  std::map<std::pair<std::string, std::vector<int>>, int> made_;
};

// The position of `rank` in a list that a World's group() was given; Error(internal) for a list that it refuses.
int member_of(const std::string& name, const std::vector<int>& ranks, int rank, int world_size);

}  // namespace octet
