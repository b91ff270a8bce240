// MpiGuard: a thread that ends the process when MPI does not come back: from a blocking call with a limit, or from the polling loop. Also what a process's last line is. Internal to comm/.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "core/error.h"

namespace octet {

// "octet: error: TEXT" on stderr, in one write so that the lines of several ranks do not mix.
void print_error_line(const std::string& text);
// ... and _exit(code): no destructors, which could wait for what can not come any more.
[[noreturn]] void end_process(ExitCode code, const std::string& text);

class MpiGuard {
 public:
  MpiGuard();
  ~MpiGuard();

  // Of a watched loop.
  void set_loop_limit(double seconds);
  // Until disarm(), this thread has so many seconds; then the process ends with `code`.
  void arm(double seconds, ExitCode code, const std::string& text);
  void disarm();

  // The polling loop shows that it goes round. When it has not for `limit_s` (time in which the whole process was stopped does not count), the process ends with ExitCode::deadline.
  void beat() { beat_.fetch_add(1, std::memory_order_relaxed); }
  void watch_loop(bool on, double limit_s, const std::string& text);

  // From now on MPI may not end the process by exit() of its own accord: the code would be its own. Such an end becomes ExitCode::device with `text`.
  void own_exit(bool on, const std::string& text);

 private:
  struct ExitWatch {   // outlives everything: exit handlers run last
    std::atomic<bool> on{false};
    std::string text;
  };
  void work();

  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false, armed_ = false;
  std::chrono::steady_clock::time_point limit_{};
  ExitCode code_ = ExitCode::deadline;
  std::string text_;
  std::atomic<uint64_t> beat_{0};
  double loop_limit_s_ = 0, still_s_ = 0;   // 0: nobody watches
  uint64_t last_beat_ = 0;
  std::string loop_text_;
  ExitWatch* exit_watch_ = nullptr;
  std::thread thread_;
};

}  // namespace octet
