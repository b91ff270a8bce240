#include "report/metrics.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

#include "core/check.h"

namespace octet {
namespace {

using nlohmann::json;

// Replaces non-finite numbers by null and collects their dotted keys.
void strip_non_finite(json& value, const std::string& key, std::vector<std::string>& found) {
  if (value.is_number_float() && !std::isfinite(value.get<double>())) {
    value = nullptr;
    found.push_back(key);
  } else if (value.is_structured()) {
    for (auto& item : value.items()) strip_non_finite(item.value(), key.empty() ? item.key() : key + "." + item.key(), found);
  }
}

}  // namespace

MetricsWriter::MetricsWriter(const std::filesystem::path& run_dir) : path_(run_dir / "metrics.jsonl") {
  fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd_ < 0) fail("cannot open");
  try {
    repair();
  } catch (...) {
    ::close(fd_);
    throw;
  }
}

MetricsWriter::~MetricsWriter() {
  if (fd_ >= 0) ::close(fd_);
}

void MetricsWriter::fail(const char* doing) const {
  throw Error(ExitCode::checkpoint, std::string(doing) + ": " + std::strerror(errno), path_.string(),
              "free disk space or choose another --run-dir, then resume");
}

void MetricsWriter::repair() {
  struct stat info {};
  if (::fstat(fd_, &info) != 0) fail("cannot read");
  if (!S_ISREG(info.st_mode)) return;
  std::string tail;  // what follows the last newline
  for (off_t end = info.st_size; end > 0;) {
    char block[4096];
    const off_t begin = std::max<off_t>(0, end - static_cast<off_t>(sizeof block));
    const auto want = static_cast<size_t>(end - begin);
    if (::pread(fd_, block, want, begin) != static_cast<ssize_t>(want)) fail("cannot read");
    const std::string_view text(block, want);
    const size_t newline = text.rfind('\n');
    tail.insert(0, text.substr(newline == std::string_view::npos ? 0 : newline + 1));
    if (newline != std::string_view::npos) break;
    end = begin;
  }
  if (tail.empty()) return;
  const bool complete = json::parse(tail, nullptr, false).is_object();
  if (complete) {
    write_whole("\n");
  } else if (::ftruncate(fd_, info.st_size - static_cast<off_t>(tail.size())) != 0) {
    fail("cannot repair");
  }
  event("metrics_repaired", {{"bytes_removed", complete ? 0 : tail.size()}});
}

void MetricsWriter::train(const TrainRecord& r, const json& extra) {
  append({{"kind", "train"},
          {"step", r.step},
          {"tokens", r.tokens},
          {"loss", r.loss},
          {"grad_norm", r.grad_norm},
          {"lr", r.lr},
          {"tokens_per_s", r.tokens_per_s},
          {"step_ms", r.step_ms}},
         extra);
}

void MetricsWriter::valid(int64_t step, int64_t tokens, double loss, const json& extra) {
  append({{"kind", "valid"}, {"step", step}, {"tokens", tokens}, {"loss", loss}}, extra);
}

void MetricsWriter::stats(int64_t step, const json& values) { append({{"kind", "stats"}, {"step", step}}, values); }

void MetricsWriter::event(const std::string& name, const json& fields) { append({{"kind", "event"}, {"event", name}}, fields); }

void MetricsWriter::append(json line, const json& extra) {
  OCTET_CHECK(extra.is_null() || extra.is_object(), "extra metrics must be an object, not {}", extra.type_name());
  for (const auto& item : extra.items()) {
    OCTET_CHECK(!line.contains(item.key()), "extra metric '{}' is a name of the line itself", item.key());
    line[item.key()] = item.value();
  }
  std::vector<std::string> non_finite;
  strip_non_finite(line, "", non_finite);
  if (!non_finite.empty()) line["nonfinite"] = non_finite;
  write_whole(line.dump(-1, ' ', true, json::error_handler_t::replace) + "\n");
}

void MetricsWriter::write_whole(const std::string& text) {
  if (fd_ < 0) return;
  struct stat before {};
  if (::fstat(fd_, &before) != 0) fail("cannot write");
  for (size_t done = 0; done < text.size();) {
    const ssize_t n = ::write(fd_, text.data() + done, text.size() - done);
    if (n > 0) {
      done += static_cast<size_t>(n);
    } else if (n == 0 || errno != EINTR) {
      const int reason = n == 0 ? ENOSPC : errno;
      // Best effort: without it the next resume repairs the torn line.
      const bool taken_back = done == 0 || ::ftruncate(fd_, before.st_size) == 0;
      errno = reason;
      fail(taken_back ? "cannot write" : "cannot write; the last line is torn");
    }
  }
}

}  // namespace octet
