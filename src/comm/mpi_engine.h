// MpiEngine: the loop of the one thread that calls MPI, and what other threads ask of it. Internal to comm/; mpi_world.cpp is its only user.
//
// Other threads put closures into an inbox. The loop runs them, polls one operation of each group, the messages of a group that is being made, and the receive that waits for another rank's
// fault; it spins for a moment when nothing moves, then sleeps for longer and longer, so that ranks that share cores leave them to the computation.
// A group has an MPI communicator of its own (MPI_Comm_create_group on a duplicate of the world's); its members first tell each other its name in messages of kHelloBytes, so that the
// blocking call is made when all have come, and a wrong order of calls is seen. What else is sent beside tensors: a fault's message, nothing in a run that ends well (but a barrier of MPI's own).
#pragma once
#include <mpi.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/mpi_guard.h"
#include "comm/mpi_transfer.h"

namespace octet {

inline constexpr int kHelloBytes = 64;

class MpiEngine {
 public:
  using Time = std::chrono::steady_clock::time_point;

  struct Group {
    std::string name;
    std::vector<int> ranks;   // of the world
    // The loop's.
    MpiLink link;
    std::unique_ptr<std::byte[]> scratch;
    struct Queued {
      Collective call;
      uint64_t ticket;
      double deadline_s;
    };
    std::deque<Queued> queue;
    std::unique_ptr<MpiTransfer> active;
    Time begin{};
    // Under the engine's mutex.
    uint64_t started = 0, finished = 0;
    TrafficCount traffic;
  };

  // Takes over an initialized MPI.
  MpiEngine(MpiGuard& guard, double deadline_s);

  int rank() const { return rank_; }
  int size() const { return size_; }
  int local_rank() const { return local_rank_; }
  int local_size() const { return local_size_; }
  const std::vector<std::string>& hosts() const { return hosts_; }

  // By any thread but the loop's.
  std::shared_ptr<Group> make_group(const std::string& name, const std::vector<int>& ranks, int member);
  uint64_t submit(const std::shared_ptr<Group>& group, const Collective& call);
  void wait(Group& group, uint64_t ticket);
  TrafficTable traffic(const Group& group);
  // The group's operations are over, or (abandoned) nothing of it may move any more.
  void drop(const std::shared_ptr<Group>& group, bool abandoned);
  static constexpr double kLoopGrace_s = 5;   // of a call of MPI that does not come back, behind the deadline of operations
  void set_deadline(double seconds) {
    deadline_s_ = seconds;
    guard_.set_loop_limit(seconds + kLoopGrace_s);
  }
  void poison(ExitCode code, const std::string& what);
  void stop();   // the program has ended: the loop returns

  // By MPI's thread.
  void loop();
  void send_poison(ExitCode code, const std::string& what, double limit_s);   // once; waits so long at most until it has left
  void finish();   // all ranks have come back: a barrier, MPI_Finalize

 private:
  struct Making {
    std::shared_ptr<Group> group;
    int member = 0;
    std::vector<std::array<char, kHelloBytes>> hello;   // by member
    std::vector<MPI_Request> requests;
    Time begin{};
    double deadline_s = 0;
    bool over = false;
    std::exception_ptr error;
  };
  void post(std::function<void()> work);
  bool run_inbox();
  bool poll_groups();
  bool advance(Group& group);
  void begin_making(const std::shared_ptr<Making>& making);
  bool poll_making();
  void complete_making();
  void receive_poison();
  void poll_poison();
  void idle(bool moved);
  [[noreturn]] void late(const Group& group);
  [[noreturn]] void fault(ExitCode code, const std::string& text);
  std::string place(int rank) const;                      // "rank 2 on HOST"
  std::string places(const std::vector<int>& ranks) const;

  MpiGuard& guard_;
  MPI_Comm control_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1, local_rank_ = 0, local_size_ = 1;
  std::vector<std::string> hosts_;
  std::atomic<double> deadline_s_;

  std::mutex mutex_;
  std::condition_variable work_, done_;
  std::deque<std::function<void()>> inbox_;
  std::atomic<bool> inbox_filled_{false};

  std::vector<std::shared_ptr<Group>> groups_, abandoned_;
  std::shared_ptr<Making> making_;
  std::vector<char> poison_in_, poison_out_;
  MPI_Request poison_request_ = MPI_REQUEST_NULL;
  bool stopped_ = false, poisoned_ = false;
  Time still_since_{};
};

}  // namespace octet
