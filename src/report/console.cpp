#include "report/console.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <fmt/chrono.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "core/check.h"
#include "report/stats.h"
#include "report/table.h"

namespace octet {
namespace {

constexpr size_t kEtaWindow = 101;

std::string step_line(const TrainRecord& r, int64_t total, std::optional<double> mfu, std::optional<double> eta) {
  std::string line = fmt::format("step {}/{} | tokens {} | loss {:.4f} | grad norm {:.4f} | lr {:.3e} | {} tokens/s | {:.1f} ms/step", r.step, total,
                                 human_count(static_cast<double>(r.tokens)), r.loss, r.grad_norm, r.lr, human_count(r.tokens_per_s), r.step_ms);
  if (mfu) line += fmt::format(" | MFU {:.1f} %", 100 * *mfu);
  if (eta) line += " | ETA " + human_duration(*eta);
  return line;
}

}  // namespace

int terminal_width(int fd) {
  if (!::isatty(fd)) return 0;
  winsize size{};
  return ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

LogFile::LogFile(const std::filesystem::path& path) : path_(path), file_(path, std::ios::app | std::ios::binary) {
  if (!file_) throw Error(ExitCode::checkpoint, "cannot open the log file", path.string(), "check that the run directory is writable");
}

void LogFile::write(std::string_view line) {
  file_ << fmt::format("{:%Y-%m-%d %H:%M:%S} ", fmt::gmtime(std::time(nullptr))) << line << '\n' << std::flush;
  if (!file_) throw Error(ExitCode::checkpoint, "cannot write the log file", path_.string(), "free disk space, then resume");
}

Console::Console(std::ostream& out, ConsoleOptions options, LineSink sink) : out_(out), options_(std::move(options)), sink_(std::move(sink)) {
  options_.log_interval = std::max<int64_t>(1, options_.log_interval);
}

Console::~Console() { finish(); }

std::optional<double> Console::eta_s(int64_t step) const {
  if (recent_ms_.empty()) return std::nullopt;
  return stats::median(recent_ms_) / 1000 * static_cast<double>(std::max<int64_t>(0, options_.total_steps - step));
}

void Console::step(const TrainRecord& record, std::optional<double> mfu) {
  const bool first = first_step_;
  first_step_ = false;
  if (!first) {
    if (recent_ms_.size() < kEtaWindow)
      recent_ms_.push_back(record.step_ms);
    else
      recent_ms_[next_ms_] = record.step_ms;
    next_ms_ = (next_ms_ + 1) % kEtaWindow;
  }
  last_ = record;
  last_mfu_ = mfu;
  ++since_line_.steps;
  since_line_.ms += record.step_ms;
  since_line_.skipped += record.skipped;
  since_line_.nan += !std::isfinite(record.loss);
  if (!record.skipped) {
    ++since_line_.updates;
    since_line_.loss += record.loss;
  }
  const bool last = record.step >= options_.total_steps;
  const bool log = first || last || record.step % options_.log_interval == 0;
  const bool terminal = on_terminal();
  if (log && (sink_ || !terminal)) {
    const std::string line = options_.megatron ? megatron_text() : step_line(record, options_.total_steps, mfu, eta_s(record.step));
    if (sink_) sink_(line);
    if (!terminal) out_ << line << '\n' << std::flush;
  }
  if (!terminal) return;
  const auto now = std::chrono::steady_clock::now();
  if (bar_shown_ && !last && std::chrono::duration<double>(now - drawn_at_).count() < options_.redraw_interval_s) return;
  drawn_at_ = now;
  draw();
}

// " [time] iteration ...". Megatron prints no loss when every step since the last line was skipped.
std::string Console::megatron_text() {
  const MegatronLine& m = *options_.megatron;
  const auto now = std::chrono::system_clock::now();
  const auto micros = std::chrono::duration_cast<std::chrono::microseconds>(now.time_since_epoch()).count() % 1'000'000;
  const double ms = since_line_.ms / static_cast<double>(since_line_.steps);
  const double flops = m.flops_per_token * static_cast<double>(m.global_batch * m.seq_len);
  std::string line = fmt::format(" [{:%Y-%m-%d %H:%M:%S}.{:06d}]", fmt::localtime(std::chrono::system_clock::to_time_t(now)), micros);
  line += fmt::format(" iteration {:8d}/{:8d} | consumed samples: {:12d} |", last_.step, options_.total_steps, last_.tokens / m.seq_len);
  line += fmt::format(" elapsed time per iteration (ms): {:.1f} | throughput per GPU (TFLOP/s/GPU): {:.1f} |", ms, flops / (ms * 1e9));
  line += fmt::format(" learning rate: {:.6E} | global batch size: {:5d} |", last_.lr, m.global_batch);
  if (since_line_.updates > 0) line += fmt::format(" lm loss: {:.6E} |", since_line_.loss / static_cast<double>(since_line_.updates));
  line += fmt::format(" loss scale: 1.0 | grad norm: {:.3f} |", last_.grad_norm);
  line += fmt::format(" number of skipped iterations: {:3d} | number of nan iterations: {:3d} |", since_line_.skipped, since_line_.nan);
  since_line_ = {};
  return line;
}

void Console::valid(int64_t step, double loss, std::string_view set) {
  if (!options_.megatron) {
    message(fmt::format("step {}/{} | validation loss{}{} {:.4f}", step, options_.total_steps, set.empty() ? "" : " ", set, loss));
    return;
  }
  const std::string line = fmt::format(" validation{}{} loss at iteration {} | lm loss value: {:.6E} | lm loss PPL: {:.6E} | ", set.empty() ? "" : "-", set, step, loss,
                                       std::exp(std::min(20.0, loss)));
  const std::string rule(line.size() + 1, '-');
  message(rule + "\n" + line + "\n" + rule);
}

void Console::message(std::string_view text) {
  while (!text.empty() && text.back() == '\n') text.remove_suffix(1);
  const bool redraw = bar_shown_;
  clear();
  out_ << text << '\n' << std::flush;
  for (size_t begin = 0; sink_ && begin <= text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    sink_(text.substr(begin, end - begin));
    begin = end + 1;
  }
  if (redraw) draw();
}

void Console::finish() {
  if (!bar_shown_) return;
  draw();
  out_ << '\n' << std::flush;
  bar_shown_ = false;
}

void Console::clear() {
  if (bar_shown_) out_ << "\r\x1b[K";
  bar_shown_ = false;
}

void Console::draw() {
  const int width = options_.width ? options_.width() : 0;
  if (width <= 0) return;
  // Overwrite, then clear the rest: clearing first would flicker. One column stays free so that no terminal wraps.
  out_ << '\r' << bar_text(width - 1) << "\x1b[K" << std::flush;
  bar_shown_ = true;
}

// Fields are dropped from the right until the line fits; what is left over becomes the bar.
std::string Console::bar_text(int width) const {
  const int64_t total = std::max<int64_t>(1, options_.total_steps);
  const double share = std::clamp(static_cast<double>(last_.step) / static_cast<double>(total), 0.0, 1.0);
  const auto eta = eta_s(last_.step);
  std::vector<std::string> fields{fmt::format("{:3.0f}% {}/{}", std::floor(100 * share), last_.step, total), fmt::format("loss {:.4f}", last_.loss),
                                  "ETA " + (eta ? human_duration(*eta) : std::string("?")), human_count(last_.tokens_per_s) + " tokens/s",
                                  fmt::format("lr {:.2e}", last_.lr)};
  if (last_mfu_) fields.push_back(fmt::format("MFU {:.1f}%", 100 * *last_mfu_));
  constexpr size_t min_bar = 10, max_bar = 40;
  const auto columns = static_cast<size_t>(std::max(width, 0));
  const auto length = [&] {
    size_t n = 0;
    for (const auto& field : fields) n += field.size() + 2;
    return n;
  };
  while (fields.size() > 1 && length() + min_bar + 2 > columns) fields.pop_back();
  std::string line;
  if (length() + min_bar + 2 <= columns) {
    const size_t bar = std::min(max_bar, columns - length() - 2);
    const auto full = static_cast<size_t>(share * static_cast<double>(bar));
    line = "[" + std::string(full, '=') + (full < bar ? ">" + std::string(bar - full - 1, ' ') : std::string()) + "]";
  }
  for (const auto& field : fields) line += (line.empty() ? "" : "  ") + field;
  return line.substr(0, columns);
}

}  // namespace octet
