#include "report/tensorboard.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <fcntl.h>
#include <fmt/format.h>
#include <system_error>
#include <unistd.h>

#include "core/check.h"
#include "report/crc32c.h"

namespace octet {
namespace {

constexpr std::string_view kPrefix = "events.out.tfevents.";

void put_fixed(std::string& out, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> (8 * i));
}

void put_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

// Protocol buffer fields: the key is (number << 3 | wire type).
void put_int(std::string& out, int number, uint64_t value) {
  put_varint(out, static_cast<uint64_t>(number) << 3);
  put_varint(out, value);
}

void put_bytes(std::string& out, int number, std::string_view bytes) {
  put_varint(out, static_cast<uint64_t>(number) << 3 | 2);
  put_varint(out, bytes.size());
  out += bytes;
}

std::string event(double wall_time, int64_t step) {
  std::string out;
  put_varint(out, 1 << 3 | 1);
  put_fixed(out, std::bit_cast<uint64_t>(wall_time), 8);
  if (step != 0) put_int(out, 2, static_cast<uint64_t>(step));  // a default value is not written
  return out;
}

std::string record(std::string_view payload) {
  std::string out;
  put_fixed(out, payload.size(), 8);
  put_fixed(out, masked_crc32c(out), 4);
  out += payload;
  put_fixed(out, masked_crc32c(payload), 4);
  return out;
}

// Event with one Summary.Value.
std::string summary(double wall_time, int64_t step, std::string_view value) {
  std::string list, out = event(wall_time, step);
  put_bytes(list, 1, value);
  put_bytes(out, 5, list);
  return record(out);
}

double wall_time_now() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

std::string host_name() {
  char name[256] = {};
  if (::gethostname(name, sizeof name - 1) != 0 || name[0] == 0) return "localhost";
  return name;
}

// The seconds in the names of the event files of a directory, or nothing when there are none.
std::optional<int64_t> newest_file_seconds(const std::filesystem::path& directory) {
  std::optional<int64_t> newest;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(directory, error); !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.rfind(kPrefix, 0) != 0) continue;
    int64_t seconds = 0;
    std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), seconds);
    newest = std::max(newest.value_or(0), seconds);
  }
  if (error) throw_io_error("list", directory, error.value(), ExitCode::checkpoint);
  return newest;
}

File create_event_file(const std::filesystem::path& directory, std::optional<int64_t> newest) {
  // TensorBoard reads the files of a folder in the order of their names: a restart within a second, or on a machine whose clock is
  // behind, must still sort last. A wild date in a name is not followed.
  constexpr int64_t ten_digits = 9'999'999'999;
  int64_t seconds = static_cast<int64_t>(wall_time_now());
  if (newest && *newest >= seconds && *newest < ten_digits) seconds = *newest + 1;
  const auto path = directory / fmt::format("{}{:010d}.{}.{}.0", kPrefix, seconds, host_name(), ::getpid());
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) throw_io_error("create", path, errno, ExitCode::checkpoint);
  return File(fd, path, ExitCode::checkpoint);
}

}  // namespace

namespace event_record {

std::string version(double wall_time) {
  std::string out = event(wall_time, 0);
  put_bytes(out, 3, "brain.Event:2");
  return record(out);
}

std::string session_start(double wall_time, int64_t step) {
  std::string log, out = event(wall_time, step);
  put_int(log, 1, 1);  // SessionLog.status = START
  put_bytes(out, 7, log);
  return record(out);
}

std::string scalar(double wall_time, int64_t step, std::string_view tag, float value) {
  std::string v;
  put_bytes(v, 1, tag);
  put_varint(v, 2 << 3 | 5);
  put_fixed(v, std::bit_cast<uint32_t>(value), 4);
  return summary(wall_time, step, v);
}

std::string text(double wall_time, int64_t step, std::string_view tag, std::string_view markdown) {
  std::string dim, shape, tensor, plugin, metadata, v;
  put_int(dim, 1, 1);
  put_bytes(shape, 2, dim);
  put_int(tensor, 1, 7);  // DT_STRING
  put_bytes(tensor, 2, shape);
  put_bytes(tensor, 8, markdown);
  put_bytes(plugin, 1, "text");
  put_bytes(metadata, 1, plugin);
  put_int(metadata, 4, 2);  // DATA_CLASS_TENSOR
  put_bytes(v, 1, tag);
  put_bytes(v, 8, tensor);
  put_bytes(v, 9, metadata);
  return summary(wall_time, step, v);
}

}  // namespace event_record

EventFile::EventFile(const std::filesystem::path& directory, int64_t first_step) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) throw_io_error("create", directory, error.value(), ExitCode::checkpoint);
  const std::optional<int64_t> newest = newest_file_seconds(directory);
  file_ = create_event_file(directory, newest);
  pending_ = event_record::version(wall_time_now());
  if (newest) pending_ += event_record::session_start(wall_time_now(), first_step);
  flush();
}

EventFile::~EventFile() {
  try {
    flush();
  } catch (const Error&) {  // NOLINT: the run ends already; its own message matters more
  }
}

void EventFile::scalar(int64_t step, std::string_view tag, double value) {
  pending_ += event_record::scalar(wall_time_now(), step, tag, static_cast<float>(value));
}

void EventFile::text(int64_t step, std::string_view tag, std::string_view markdown) { pending_ += event_record::text(wall_time_now(), step, tag, markdown); }

void EventFile::flush() {
  if (pending_.empty()) return;
  const auto before = static_cast<off_t>(file_.size_bytes());
  try {
    file_.write_all(pending_.data(), pending_.size());
  } catch (const Error&) {
    pending_.clear();  // the destructor must not try again
    // Best effort: readers tolerate a torn record at the end, and this file gets no more.
    [[maybe_unused]] const int ignored = ::ftruncate(file_.fd(), before);
    throw;
  }
  pending_.clear();
}

TensorBoard::TensorBoard(const std::filesystem::path& run_dir, TensorBoardOptions options, const std::string& resolved_config)
    : options_(options), steps_(run_dir / "tb", options.finished_steps + 1) {
  OCTET_CHECK(options_.seq_len > 0 && options_.global_batch > 0, "{} samples of {} tokens a step", options_.global_batch, options_.seq_len);
  if (options_.megatron_names) samples_.emplace(run_dir / "tb" / "vs_samples", options.finished_samples + 1);
  steps_.text(options_.finished_steps, "config", "```json\n" + resolved_config + "\n```\n");
  flush();
}

void TensorBoard::both(int64_t step, int64_t samples, const std::string& tag, double value) {
  steps_.scalar(step, tag, value);
  samples_->scalar(samples, tag + " vs samples", value);
}

void TensorBoard::train(const TrainRecord& r, std::optional<double> mfu, std::optional<double> z_loss) {
  if (!options_.megatron_names) {
    steps_.scalar(r.step, "train/loss", r.loss);
    steps_.scalar(r.step, "train/grad_norm", r.grad_norm);
    steps_.scalar(r.step, "train/lr", r.lr);
    if (z_loss) steps_.scalar(r.step, "train/z_loss", *z_loss);
    steps_.scalar(r.step, "perf/tokens_per_s", r.tokens_per_s);
    steps_.scalar(r.step, "perf/step_ms", r.step_ms);
    if (mfu) steps_.scalar(r.step, "perf/mfu", *mfu);
    return;
  }
  const int64_t samples = r.tokens / options_.seq_len;
  both(r.step, samples, "lm loss", r.loss);
  both(r.step, samples, "grad-norm", r.grad_norm);
  both(r.step, samples, "learning-rate", r.lr);
  both(r.step, samples, "batch-size", static_cast<double>(options_.global_batch));
  both(r.step, samples, "loss-scale", 1.0);
  steps_.scalar(r.step, "iteration-time", r.step_ms / 1000);
  steps_.scalar(r.step, "throughput", options_.flops_per_token * r.tokens_per_s / 1e12);
}

void TensorBoard::valid(int64_t step, int64_t tokens, double loss, std::span<const std::pair<std::string, double>> sets) {
  if (!options_.megatron_names) {
    steps_.scalar(step, "valid/loss", loss);
    for (const auto& [name, set_loss] : sets) steps_.scalar(step, "valid/" + name + "/loss", set_loss);
    return;
  }
  const auto one = [&](const std::string& suffix, double value) {
    both(step, tokens / options_.seq_len, "lm loss validation" + suffix, value);
    both(step, tokens / options_.seq_len, "lm loss validation" + suffix + " ppl", std::exp(std::min(20.0, value)));  // Megatron's bound
  };
  one("", loss);
  for (const auto& [name, set_loss] : sets) one("-" + name, set_loss);
}

void TensorBoard::health(int64_t step, const HealthArrays& a) {
  const size_t n = a.roles.size();
  OCTET_CHECK(a.amax.size() == n && a.underflow.size() == n && a.saturation.size() == n && a.sqnr_db.size() == n && a.cosine.size() == n && a.nonfinite.size() == n,
              "{} sites, but arrays of {}, {}, {}, {}, {}, {}", n, a.amax.size(), a.underflow.size(), a.saturation.size(), a.sqnr_db.size(), a.cosine.size(),
              a.nonfinite.size());
  for (const char* role : {"x", "w", "dy"}) {
    bool present = false;
    int64_t nonfinite = 0;
    for (size_t i = 0; i < n; ++i) {
      if (a.roles[i] != role) continue;
      present = true;
      nonfinite += a.nonfinite[i];
    }
    if (!present) continue;
    const auto worst = [&](const char* name, std::span<const double> values, bool largest) {
      std::optional<double> found;
      for (size_t i = 0; i < n; ++i) {
        if (a.roles[i] != role || std::isnan(values[i])) continue;
        found = !found ? values[i] : largest ? std::max(*found, values[i]) : std::min(*found, values[i]);
      }
      if (found) steps_.scalar(step, fmt::format("fp8/{}/{}", role, name), *found);
    };
    worst("amax_max", a.amax, true);
    worst("underflow_max", a.underflow, true);
    worst("saturation_max", a.saturation, true);
    worst("sqnr_db_min", a.sqnr_db, false);
    worst("cosine_min", a.cosine, false);
    steps_.scalar(step, fmt::format("fp8/{}/nonfinite", role), static_cast<double>(nonfinite));
  }
}

void TensorBoard::flush() {
  steps_.flush();
  if (samples_) samples_->flush();
}

}  // namespace octet
