#include "report/console.h"

#include <algorithm>
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
  const bool last = record.step >= options_.total_steps;
  const bool log = first || last || record.step % options_.log_interval == 0;
  const bool terminal = options_.width && options_.width() > 0;
  if (log && (sink_ || !terminal)) {
    const std::string line = step_line(record, options_.total_steps, mfu, eta_s(record.step));
    if (sink_) sink_(line);
    if (!terminal) out_ << line << '\n' << std::flush;
  }
  if (!terminal) return;
  const auto now = std::chrono::steady_clock::now();
  if (bar_shown_ && !last && std::chrono::duration<double>(now - drawn_at_).count() < options_.redraw_interval_s) return;
  drawn_at_ = now;
  draw();
}

void Console::valid(int64_t step, double loss) { message(fmt::format("step {}/{} | validation loss {:.4f}", step, options_.total_steps, loss)); }

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
