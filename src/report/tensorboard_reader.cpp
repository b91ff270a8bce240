#include "report/tensorboard_reader.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <fmt/format.h>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <sstream>

#include "core/error.h"
#include "core/protobuf_fields.h"
#include "report/crc32c.h"
#include "report/run_collector.h"

namespace octet::report {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxRecordBytes = uint64_t{256} << 20;  // images and embeddings are far below

[[noreturn]] void bad_file(const std::string& where, const std::string& what) {
  throw Error(ExitCode::data, what, where, "restore the file, or take it out of the folder");
}

struct Tag {
  const char* name;
  ScalarRole role;
};
// "train/...", "valid/loss": Octet. "lm loss", "learning-rate", "grad-norm": Megatron-LM. "loss_metrics/...", "n_tokens_seen": torchtitan.
// "lm_loss", "consumed_tokens", ...: nanotron.
constexpr std::array<Tag, 21> kTags{{{"train/loss", ScalarRole::loss},
                                     {"lm loss", ScalarRole::loss},
                                     {"loss_metrics/global_avg_loss", ScalarRole::loss},
                                     {"lm_loss", ScalarRole::loss},
                                     {"valid/loss", ScalarRole::valid_loss},
                                     {"lm loss validation", ScalarRole::valid_loss},
                                     {"validation_metrics/loss", ScalarRole::valid_loss},
                                     {"train/grad_norm", ScalarRole::grad_norm},
                                     {"grad-norm", ScalarRole::grad_norm},
                                     {"grad_norm", ScalarRole::grad_norm},
                                     {"train/lr", ScalarRole::lr},
                                     {"learning-rate", ScalarRole::lr},
                                     {"lr", ScalarRole::lr},
                                     {"train/tokens_per_s", ScalarRole::tokens_per_s},
                                     {"throughput(tps)", ScalarRole::tokens_per_s},
                                     {"tokens_per_sec", ScalarRole::tokens_per_s},
                                     {"train/step_ms", ScalarRole::step_ms},
                                     {"train/tokens", ScalarRole::tokens},
                                     {"n_tokens_seen", ScalarRole::tokens},
                                     {"ntokens", ScalarRole::tokens},
                                     {"consumed_tokens", ScalarRole::tokens}}};

uint64_t little_endian(std::string_view bytes) {
  uint64_t v = 0;
  for (size_t i = bytes.size(); i-- > 0;) v = v << 8 | static_cast<uint8_t>(bytes[i]);
  return v;
}

float float_of(std::string_view bytes) { return std::bit_cast<float>(static_cast<uint32_t>(little_endian(bytes.substr(0, 4)))); }
double double_of(std::string_view bytes) { return std::bit_cast<double>(little_endian(bytes.substr(0, 8))); }

// The fields of an event or a message in it.
struct Fields : ProtobufFields {
  Fields(std::string_view message, const std::string& where)
      : ProtobufFields(message, where, [](const std::string& file, bool) { bad_file(file, "a record is not a well-formed event message"); }) {}
};

// The first element of a float or double tensor.
std::optional<double> tensor_value(std::string_view message, const std::string& where) {
  uint64_t dtype = 0;
  std::string_view content, floats, doubles;
  for (Fields f(message, where); f.next();) {
    if (f.is(1, 0)) dtype = f.value;
    if (f.is(4, 2)) content = f.bytes;
    if ((f.is(5, 2) || f.is(5, 5)) && floats.empty()) floats = f.bytes;  // packed or not
    if ((f.is(6, 2) || f.is(6, 1)) && doubles.empty()) doubles = f.bytes;
  }
  constexpr uint64_t dt_float = 1, dt_double = 2;
  if (dtype == dt_float && (content.size() >= 4 || floats.size() >= 4)) return float_of(content.size() >= 4 ? content : floats);
  if (dtype == dt_double && (content.size() >= 8 || doubles.size() >= 8)) return double_of(content.size() >= 8 ? content : doubles);
  return std::nullopt;
}

void add_value(std::string_view message, int64_t step, TensorboardScalars& out, const std::string& where) {
  std::string_view tag;
  std::optional<double> value;
  for (Fields f(message, where); f.next();) {
    if (f.is(1, 2)) tag = f.bytes;
    if (f.is(2, 5)) value = float_of(f.bytes);
    if (f.is(8, 2)) value = tensor_value(f.bytes, where);
  }
  const auto it = std::find_if(kTags.begin(), kTags.end(), [&](const Tag& t) { return t.name == tag; });
  if (it != kTags.end() && value) out.scalars.push_back({step, it->role, *value});
}

void add_event(std::string_view payload, TensorboardScalars& out, const std::string& where) {
  uint64_t step = 0;  // absent: 0, as protocol buffers leave zeros out
  std::vector<std::string_view> summaries;
  bool start = false;
  for (Fields f(payload, where); f.next();) {
    if (f.is(2, 0)) step = f.value;
    if (f.is(5, 2)) summaries.push_back(f.bytes);
    if (!f.is(7, 2)) continue;
    for (Fields session(f.bytes, where); session.next();) start = start || (session.is(1, 0) && session.value == 1);
  }
  if (step > static_cast<uint64_t>(kMaxTokens)) bad_file(where, "an event's step is not between 0 and 2^53");
  if (start) out.starts.emplace_back(out.scalars.size(), static_cast<int64_t>(step));
  for (const std::string_view summary : summaries) {
    for (Fields f(summary, where); f.next();) {
      if (f.is(1, 2)) add_value(f.bytes, static_cast<int64_t>(step), out, where);
    }
  }
}

// Reads n bytes; fewer are there only at the end of the file.
bool read_bytes(std::istream& file, uint64_t n, std::string& out) {
  out.clear();
  constexpr uint64_t chunk = 1 << 20;  // a length is believed only as far as bytes follow
  while (out.size() < n) {
    const size_t had = out.size(), want = static_cast<size_t>(std::min<uint64_t>(chunk, n - had));
    out.resize(had + want);
    file.read(out.data() + had, static_cast<std::streamsize>(want));
    out.resize(had + static_cast<size_t>(file.gcount()));
    if (static_cast<size_t>(file.gcount()) < want) return false;
  }
  return true;
}

// Collects scalars by step, as they were written.
class Steps {
 public:
  explicit Steps(RunMetrics& run) : run_(run) {}

  void add(const TensorboardScalars& file) {
    size_t next_start = 0;
    for (size_t i = 0; i <= file.scalars.size(); ++i) {
      for (; next_start < file.starts.size() && file.starts[next_start].first == i; ++next_start) restart(file.starts[next_start].second);
      if (i < file.scalars.size()) add(file.scalars[i]);
    }
  }

  void finish(const std::string& where) {
    if (losses_.empty() && valid_.empty()) {
      bad_file(where, "no loss in the event files: none of the tags train/loss, lm loss, loss_metrics/global_avg_loss, lm_loss, valid/loss is there");
    }
    const bool has_tokens = !losses_.empty() && std::all_of(losses_.begin(), losses_.end(), [](const auto& p) { return p.second.tokens >= 0; });
    const int64_t per_step = run_.tokens_per_step.value_or(1);
    if (!has_tokens && !run_.tokens_per_step) run_.notes.push_back(where + ": its event files do not count tokens; it is aligned by steps");
    const auto tokens = [&](int64_t step) {
      if (step > kMaxTokens / per_step) bad_file(where, "steps times tokens a step are beyond 2^53");
      return step * per_step;
    };
    RunCollector collector(run_);
    for (auto& [step, point] : losses_) {
      if (!has_tokens) point.tokens = tokens(step);
      point.non_finite = !std::isfinite(point.loss) || std::isinf(point.grad_norm) || bad_norms_.contains(step);
      collector.add(point);
    }
    int64_t left_out = 0;
    for (const auto& [step, loss] : valid_) {
      const auto it = losses_.find(step);
      if (it == losses_.end() && has_tokens && step > 0) {
        ++left_out;
        continue;
      }
      collector.add(ValidPoint{step, it != losses_.end() ? it->second.tokens : has_tokens ? 0 : tokens(step), loss});
    }
    if (left_out) run_.notes.push_back(fmt::format("{}: {} validations at steps without a count of tokens left out", where, left_out));
    collector.finish(where);
  }

 private:
  void restart(int64_t step) {
    if (losses_.lower_bound(step) != losses_.end()) ++run_.resumes;
    losses_.erase(losses_.lower_bound(step), losses_.end());
    pending_.erase(pending_.lower_bound(step), pending_.end());
    valid_.erase(valid_.lower_bound(step), valid_.end());
  }

  void add(const TensorboardScalar& s) {
    if (s.role == ScalarRole::valid_loss) {
      valid_[s.step] = s.value;
      return;
    }
    if (s.role != ScalarRole::loss) {
      set(losses_.contains(s.step) ? losses_[s.step] : pending_.try_emplace(s.step, empty(s.step)).first->second, s);
      return;
    }
    if (!losses_.empty() && s.step < losses_.rbegin()->first) {  // writers without a SessionLog start over in a new file
      ++run_.resumes;
      losses_.erase(losses_.upper_bound(s.step), losses_.end());
      valid_.erase(valid_.upper_bound(s.step), valid_.end());
      pending_.erase(pending_.upper_bound(s.step), pending_.end());
    }
    const auto pending = pending_.find(s.step);
    TrainPoint& point = losses_.try_emplace(s.step, pending == pending_.end() ? empty(s.step) : pending->second).first->second;
    point.loss = s.value;
    if (pending != pending_.end()) pending_.erase(pending);
  }

  static TrainPoint empty(int64_t step) {
    TrainPoint p;
    p.step = step;
    p.tokens = -1;
    p.loss = p.grad_norm = p.lr = p.tokens_per_s = p.step_ms = kNan;
    return p;
  }

  void set(TrainPoint& point, const TensorboardScalar& s) {
    switch (s.role) {
      case ScalarRole::grad_norm:
        point.grad_norm = s.value;
        if (std::isfinite(s.value))
          bad_norms_.erase(s.step);
        else
          bad_norms_.insert(s.step);
        break;
      case ScalarRole::lr: point.lr = s.value; break;
      case ScalarRole::tokens_per_s: point.tokens_per_s = s.value; break;
      case ScalarRole::step_ms: point.step_ms = s.value; break;
      case ScalarRole::tokens: point.tokens = s.value >= 0 && s.value <= static_cast<double>(kMaxTokens) ? std::llround(s.value) : -1; break;
      case ScalarRole::loss:
      case ScalarRole::valid_loss: break;
    }
  }

  RunMetrics& run_;
  std::map<int64_t, TrainPoint> losses_, pending_;  // pending: other values of a step whose loss has not come yet
  std::map<int64_t, double> valid_;
  std::set<int64_t> bad_norms_;
};

}  // namespace

TensorboardScalars parse_tensorboard(std::istream& file, const std::string& where) {
  TensorboardScalars out;
  std::string header, payload, tail;
  for (int64_t number = 1;; ++number) {
    const std::string record = fmt::format("{}, record {}", where, number);
    const bool whole = read_bytes(file, 12, header);
    if (header.empty()) return out;
    out.torn = !whole;
    if (out.torn) return out;
    const uint64_t length = little_endian(std::string_view(header).substr(0, 8));
    if (masked_crc32c(std::string_view(header).substr(0, 8)) != little_endian(std::string_view(header).substr(8))) {
      bad_file(record, "the checksum of the length does not match: the file is damaged, or not an event file");
    }
    if (length > kMaxRecordBytes) bad_file(record, fmt::format("the record has {} bytes, more than {}", length, kMaxRecordBytes));
    out.torn = !read_bytes(file, length, payload) || !read_bytes(file, 4, tail);
    if (out.torn) return out;
    if (masked_crc32c(payload) != little_endian(tail)) bad_file(record, "the checksum of the record does not match: the file is damaged");
    add_event(payload, out, record);
  }
}

TensorboardScalars parse_tensorboard(std::string_view bytes, const std::string& where) {
  std::istringstream file{std::string(bytes)};
  return parse_tensorboard(file, where);
}

bool is_tensorboard_folder(const fs::path& folder) {
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (it->path().filename().string().find("tfevents") != std::string::npos) return true;
  }
  return false;
}

void read_tensorboard(const fs::path& folder, RunMetrics& run) {
  std::error_code error;
  std::vector<fs::path> files;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (it->path().filename().string().find("tfevents") != std::string::npos) files.push_back(it->path());
  }
  std::sort(files.begin(), files.end());  // their names begin with the time they were opened
  Steps steps(run);
  for (const fs::path& path : files) {
    std::ifstream file;
    if (fs::is_regular_file(path, error)) file.open(path, std::ios::binary);
    if (!file.is_open()) bad_file(path.string(), "cannot read the event file");
    const TensorboardScalars scalars = parse_tensorboard(file, path.string());
    if (scalars.torn) run.notes.push_back(path.string() + ": torn last record passed over");
    steps.add(scalars);
    run.files.push_back(path);
  }
  steps.finish(folder.string());
}

}  // namespace octet::report
