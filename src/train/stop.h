// Why a run stops early: a signal (exit code 20) or its time limit (21). Signals only set a flag; the loop looks at it between steps.
#pragma once
#include <chrono>
#include <optional>

#include "core/error.h"

namespace octet {

// While an object exists SIGTERM, SIGINT, SIGUSR1 and SIGHUP ask for a stop after the current step; a second one ends the process at once with
// its default action. One object at a time.
class StopRequests {
 public:
  // minutes 0: no limit.
  explicit StopRequests(double exit_after_minutes);
  ~StopRequests();
  StopRequests(const StopRequests&) = delete;
  StopRequests& operator=(const StopRequests&) = delete;

  std::optional<ExitCode> pending() const;

 private:
  std::optional<std::chrono::steady_clock::time_point> deadline_;
};

}  // namespace octet
