#include "train/watchdog.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "core/error.h"

namespace octet {
namespace {
constexpr size_t remembered_steps = 101;
}

Watchdog::Watchdog(double deadline_s, double grace_s) : fixed_s_(deadline_s), grace_s_(grace_s), thread_([this] { watch(); }) {}

Watchdog::~Watchdog() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

double Watchdog::current_deadline() const {
  if (fixed_s_ > 0) return fixed_s_;
  if (recent_.empty()) return std::max(60.0, minimum_s_);
  std::vector<double> sorted = recent_;
  std::nth_element(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2), sorted.end());
  return std::max({60.0, minimum_s_, 10.0 * sorted[sorted.size() / 2]});
}

double Watchdog::deadline_s() const {
  std::lock_guard lock(mutex_);
  return current_deadline();
}

void Watchdog::begin(int64_t step, const char* phase, double minimum_s) {
  std::lock_guard lock(mutex_);
  active_ = true;
  ++generation_;
  step_ = step;
  phase_ = phase;
  minimum_s_ = minimum_s;
  changed_.notify_all();
}

void Watchdog::idle() {
  std::lock_guard lock(mutex_);
  active_ = false;
  ++generation_;
  changed_.notify_all();
}

void Watchdog::step_took(double seconds) {
  std::lock_guard lock(mutex_);
  if (recent_.size() == remembered_steps) recent_.erase(recent_.begin());
  recent_.push_back(seconds);
}

void Watchdog::watch() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    const double deadline = current_deadline();
    if (!active_) {
      changed_.wait(lock);
      continue;
    }
    const uint64_t seen = generation_;
    const bool moved = changed_.wait_for(lock, std::chrono::duration<double>(deadline + grace_s_), [&] { return stop_ || generation_ != seen; });
    if (moved) continue;
    fmt::print(stderr, "octet: error: step {}: {} did not finish within {:g} s (guard.deadline_s; the last checkpoint is intact, resume with --resume auto)\n", step_, phase_,
               deadline);
    std::fflush(stderr);
    // Not exit(): destructors would wait for the thread that hangs.
    _exit(static_cast<int>(ExitCode::deadline));
  }
}

}  // namespace octet
