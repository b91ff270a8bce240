// Console: what a training run shows. On a terminal one line that is redrawn in place (bar, loss, speed, ETA); elsewhere one
// line every log interval. Both also go, as lines, to a sink (RUN/log.txt). Streams and width are injected.
#pragma once
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "report/metrics.h"

namespace octet {

using LineSink = std::function<void(std::string_view line)>;

// Columns of the terminal behind the file descriptor (TIOCGWINSZ, 80 when it does not say); 0 when it is not a terminal.
int terminal_width(int fd);

// RUN/log.txt, opened for appending; each line is flushed and carries a UTC time. Throws Error(checkpoint) when it cannot be written.
class LogFile {
 public:
  explicit LogFile(const std::filesystem::path& path);
  void write(std::string_view line);

 private:
  std::filesystem::path path_;
  std::ofstream file_;
};

struct ConsoleOptions {
  int64_t total_steps = 0;
  int64_t log_interval = 1;        // steps between lines; the first and the last step always get one
  std::function<int()> width;      // columns, asked at each redraw (a window may be resized); empty or 0: not a terminal
  double redraw_interval_s = 0.1;  // at most so often, so that fast steps do not flood the terminal
};

class Console {
 public:
  Console(std::ostream& out, ConsoleOptions options, LineSink sink = {});
  ~Console();  // finish()
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  // mfu: model FLOP utilisation as a share of 1. The first step shown is left out of the ETA: it pays for page faults and warm-up.
  void step(const TrainRecord& record, std::optional<double> mfu = std::nullopt);
  void valid(int64_t step, double loss);
  // A whole message, one or more lines, above the bar.
  void message(std::string_view text);
  // Ends the bar with a newline; further calls may follow.
  void finish();

  // Median step time of the last 101 steps times the steps left; absent before the second step.
  std::optional<double> eta_s(int64_t step) const;

 private:
  std::string bar_text(int width) const;
  void draw();
  void clear();

  std::ostream& out_;
  ConsoleOptions options_;
  LineSink sink_;
  std::vector<double> recent_ms_;  // ring of step times
  size_t next_ms_ = 0;
  bool first_step_ = true;
  bool bar_shown_ = false;
  TrainRecord last_;
  std::optional<double> last_mfu_;
  std::chrono::steady_clock::time_point drawn_at_{};
};

}  // namespace octet
