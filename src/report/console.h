// Console: what a training run shows. On a terminal one line that is redrawn in place (bar, loss, speed, ETA); elsewhere one
// line every log interval. Both also go, as lines, to a sink (RUN/log.txt). Streams and width are injected.
//
// Megatron's form (ConsoleOptions::megatron) prints lines on a terminal too. Fields, order and number formats are those of Megatron-LM's
// training_log() and evaluate_and_print_results() (megatron/training/training.py), which scripts parse: time and loss are means over the
// steps since the last line (loss: over those that were not skipped), skipped and NaN iterations are counted over them.
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

struct MegatronLine {
  int64_t global_batch = 0, seq_len = 0;
  double flops_per_token = 0;  // model_causal
};

struct ConsoleOptions {
  int64_t total_steps = 0;
  int64_t log_interval = 1;        // steps between lines; the first and the last step always get one
  std::function<int()> width;      // columns, asked at each redraw (a window may be resized); empty or 0: not a terminal
  std::optional<MegatronLine> megatron;
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
  // set: its name, empty for the only or first one.
  void valid(int64_t step, double loss, std::string_view set = {});
  // A whole message, one or more lines, above the bar.
  void message(std::string_view text);
  // Ends the bar with a newline; further calls may follow.
  void finish();

  // Median step time of the last 101 steps times the steps left; absent before the second step.
  std::optional<double> eta_s(int64_t step) const;

 private:
  std::string megatron_text();
  bool on_terminal() const { return !options_.megatron && options_.width && options_.width() > 0; }
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
  struct {
    int64_t steps = 0, updates = 0, skipped = 0, nan = 0;
    double ms = 0, loss = 0;
  } since_line_;  // for Megatron's line
  std::chrono::steady_clock::time_point drawn_at_{};
};

}  // namespace octet
