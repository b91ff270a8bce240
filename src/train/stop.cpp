#include "train/stop.h"

#include <csignal>

namespace octet {
namespace {

// A signal handler can reach nothing but a static flag.
volatile std::sig_atomic_t requested = 0;
constexpr int signals[] = {SIGTERM, SIGINT, SIGUSR1, SIGUSR2, SIGHUP};

extern "C" void request_stop(int signal) {
  requested = 1;
  std::signal(signal, SIG_DFL);
}

}  // namespace

StopRequests::StopRequests(double exit_after_minutes) {
  if (exit_after_minutes > 0) {
    deadline_ = std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(exit_after_minutes * 60.0));
  }
  requested = 0;
  for (int s : signals) std::signal(s, request_stop);
}

StopRequests::~StopRequests() {
  for (int s : signals) std::signal(s, SIG_DFL);
}

std::optional<ExitCode> StopRequests::pending() const {
  if (requested) return ExitCode::stopped;
  if (deadline_ && std::chrono::steady_clock::now() >= *deadline_) return ExitCode::time_limit;
  return std::nullopt;
}

}  // namespace octet
