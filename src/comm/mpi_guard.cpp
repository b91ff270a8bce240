#include "comm/mpi_guard.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

namespace octet {

void print_error_line(const std::string& text) {
  std::string line = "octet: error: " + text;
  std::replace(line.begin(), line.end(), '\n', ' ');
  line += '\n';
  for (size_t at = 0; at < line.size();) {
    const ssize_t n = ::write(STDERR_FILENO, line.data() + at, line.size() - at);
    if (n <= 0) return;
    at += static_cast<size_t>(n);
  }
}

void end_process(ExitCode code, const std::string& text) {
  print_error_line(text);
  ::_exit(static_cast<int>(code));
}

MpiGuard::MpiGuard() : thread_([this] { work(); }) {}

MpiGuard::~MpiGuard() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  thread_.join();
  if (exit_watch_) exit_watch_->on = false;
}

void MpiGuard::arm(double seconds, ExitCode code, const std::string& text) {
  const std::lock_guard lock(mutex_);
  armed_ = true;
  limit_ = std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(seconds));
  code_ = code;
  text_ = text;
  changed_.notify_all();
}

void MpiGuard::disarm() {
  const std::lock_guard lock(mutex_);
  armed_ = false;
}

void MpiGuard::watch_loop(bool on, double limit_s, const std::string& text) {
  const std::lock_guard lock(mutex_);
  loop_limit_s_ = on ? limit_s : 0;
  still_s_ = 0;
  loop_text_ = text;
  changed_.notify_all();
}

void MpiGuard::set_loop_limit(double seconds) {
  const std::lock_guard lock(mutex_);
  if (loop_limit_s_ > 0) loop_limit_s_ = seconds;
  changed_.notify_all();
}

void MpiGuard::own_exit(bool on, const std::string& text) {
  if (!exit_watch_) {
    exit_watch_ = new ExitWatch;   // never freed: an exit handler can not be taken back
    ::on_exit([](int status, void* p) {
      const auto* watch = static_cast<const ExitWatch*>(p);
      if (watch->on) end_process(ExitCode::device, fmt::format("{} (exit code {})", watch->text, status));
    }, exit_watch_);
  }
  exit_watch_->text = text;
  exit_watch_->on = on;
}

void MpiGuard::work() {
  constexpr double kTurn = 0.25;
  std::unique_lock lock(mutex_);
  while (!stop_) {
    const auto now = std::chrono::steady_clock::now();
    if (armed_ && now >= limit_) end_process(code_, text_);
    if (loop_limit_s_ > 0) {
      const uint64_t beat = beat_.load(std::memory_order_relaxed);
      // By turns, not by the clock: that went on while the process was stopped.
      still_s_ = beat == last_beat_ ? still_s_ + kTurn : 0;
      last_beat_ = beat;
      if (still_s_ > loop_limit_s_) end_process(ExitCode::deadline, loop_text_);
    }
    if (armed_) {
      changed_.wait_until(lock, std::min(limit_, now + std::chrono::milliseconds(250)));
    } else if (loop_limit_s_ > 0) {
      changed_.wait_for(lock, std::chrono::milliseconds(250));
    } else {
      changed_.wait(lock);
    }
  }
}

}  // namespace octet
