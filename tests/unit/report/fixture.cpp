#include "fixture.h"

#include <cmath>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <stdlib.h>

#include "core/philox.h"
#include "report/metrics.h"
#include "source_dir.h"

namespace octet::test {

double ideal_loss(int64_t step) { return 2.0 + 3.6 * std::exp(-static_cast<double>(step) / 40); }

report::RunMetrics make_run(const RunShape& s) {
  report::RunMetrics run;
  run.source = s.name;
  run.name = s.name;
  run.recipe = s.recipe;
  run.seed = s.seed;
  run.tokens_per_step = s.tokens_per_step;
  const Philox rng(s.seed.value_or(0), RngPurpose::init, "fixture");
  const auto factor = [&](int64_t step) { return 1 + (s.gap_percent + (s.extra_percent ? s.extra_percent(step) : 0)) / 100; };
  for (int64_t step = 1; step <= s.steps; ++step) {
    const double noise = s.noise * rng.normal(static_cast<uint64_t>(step));
    report::TrainPoint p;
    p.step = step;
    p.tokens = step * s.tokens_per_step;
    p.loss = (ideal_loss(step) + noise) * factor(step);
    p.grad_norm = s.grad_norm * (0.4 + 2 * std::exp(-static_cast<double>(step) / 20) + std::abs(noise));
    p.lr = 5e-4;
    p.tokens_per_s = step == 1 ? s.tokens_per_s / 50 : s.tokens_per_s * (1 + 0.2 * noise);
    p.step_ms = 1000 * static_cast<double>(s.tokens_per_step) / p.tokens_per_s;
    p.non_finite = !std::isfinite(p.loss);
    run.train.push_back(p);
    if (s.valid_every && step % s.valid_every == 0) run.valid.push_back({step, p.tokens, (ideal_loss(step) + 0.05) * factor(step)});
  }
  return run;
}

std::filesystem::path write_run(const std::filesystem::path& parent, const RunShape& shape) {
  const report::RunMetrics run = make_run(shape);
  const auto dir = parent / shape.name;
  std::filesystem::create_directories(dir);
  nlohmann::json config{{"precision", {{"recipe", shape.recipe}}},
                        {"run", {{"steps", shape.steps}}},
                        {"batch", {{"global", shape.tokens_per_step / 64}}},
                        {"data", {{"seq_len", 64}}}};
  if (shape.seed) config["run"]["seed"] = *shape.seed;
  write_text(dir / "config.resolved.json", config.dump(2));
  MetricsWriter writer(dir);
  size_t v = 0;
  for (const auto& p : run.train) {
    writer.train({p.step, p.tokens, p.loss, p.grad_norm, p.lr, p.tokens_per_s, p.step_ms});
    if (v < run.valid.size() && run.valid[v].step == p.step) {
      writer.valid(p.step, p.tokens, run.valid[v].loss);
      ++v;
    }
  }
  const double elements = shape.recipe == "bf16" ? 0 : 1e6;
  writer.event("summary", {{"quantized", {{"x", {{"e4m3", elements}}}, {"dy", {{"e5m2", elements / 2}}}}}});
  return dir;
}

TempDir::TempDir() {
  std::string pattern = (std::filesystem::temp_directory_path() / "octet_report_XXXXXX").string();
  if (!::mkdtemp(pattern.data())) throw std::runtime_error("mkdtemp failed");
  path_ = pattern;
}

TempDir::~TempDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void write_text(const std::filesystem::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text << std::flush;
  if (!file) throw std::runtime_error("cannot write " + path.string());
}

std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  if (!file) throw std::runtime_error("cannot read " + path.string());
  return text.str();
}

std::filesystem::path fixture(const std::string& name) { return std::filesystem::path(octet::test::source_dir()) / "tests/unit/report/fixtures" / name; }

}  // namespace octet::test
