// Synthetic runs for the comparison tests: deterministic loss curves with a known relative gap, in memory or as run directories.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "report/run_metrics.h"

namespace octet::test {

struct RunShape {
  std::string name = "bf16";
  std::string recipe = "bf16";
  std::optional<uint64_t> seed = 1;
  int64_t steps = 200, tokens_per_step = 1024, valid_every = 50;  // valid_every 0: no validation
  double gap_percent = 0;                                         // of every loss, training and validation
  double noise = 0.02;                                            // amplitude of the step noise; the same for runs with one seed
  double tokens_per_s = 10000, grad_norm = 1;
  std::function<double(int64_t step)> extra_percent = nullptr;  // added to gap_percent at a step
};

// Loss without gap and noise: falls from 5.6 towards 2.
double ideal_loss(int64_t step);

report::RunMetrics make_run(const RunShape& shape);

// Writes RUN/metrics.jsonl (through MetricsWriter) and RUN/config.resolved.json; returns the directory.
std::filesystem::path write_run(const std::filesystem::path& parent, const RunShape& shape);

// An empty directory that goes away with the object.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

void write_text(const std::filesystem::path& path, const std::string& text);
std::string read_text(const std::filesystem::path& path);

// The path of a committed fixture.
std::filesystem::path fixture(const std::string& name);

}  // namespace octet::test
