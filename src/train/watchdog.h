// Watchdog: ends a process whose step does not finish (exit code 31). A thread of its own: the training thread may be the one that hangs.
#pragma once
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace octet {

class Watchdog {
 public:
  // deadline_s 0: max(60, 10 x median step time), or the phase's own minimum when that is longer.
  // grace_s: that much later than deadline_s() says, for what has that deadline too and says more about it.
  explicit Watchdog(double deadline_s, double grace_s = 0);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // A phase begins: the step it belongs to and its name, for the last message. Restarts the clock. minimum_s: for phases that may
  // take longer than steps do; a fixed deadline overrides it.
  void begin(int64_t step, const char* phase, double minimum_s = 0);
  // Nothing is being waited for (between phases).
  void idle();
  void step_took(double seconds);
  // Seconds the present phase may take.
  double deadline_s() const;

 private:
  void watch();
  double current_deadline() const;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  double fixed_s_, grace_s_;
  std::vector<double> recent_;
  bool active_ = false, stop_ = false;
  uint64_t generation_ = 0;
  int64_t step_ = 0;
  const char* phase_ = "";
  double minimum_s_ = 0;
  std::thread thread_;
};

}  // namespace octet
