// A run directory as `octet compare` reads it: metrics.jsonl, and before a NUL byte (when there is one) config.resolved.json.
#include "fuzz.h"
#include "report/run_metrics.h"

using namespace octet;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fuzz::Scratch scratch;
  const std::string_view text = fuzz::text_of(data, size);
  const size_t nul = text.find('\0');
  const auto config = scratch.path("config.resolved.json");
  if (nul == std::string_view::npos) {
    std::filesystem::remove(config);
  } else {
    scratch.write("config.resolved.json", text.substr(0, nul));
  }
  scratch.write("metrics.jsonl", nul == std::string_view::npos ? text : text.substr(nul + 1));
  fuzz::accepts({ExitCode::data}, [&] {
    const report::RunMetrics run = report::read_run(scratch.path("."));
    for (size_t i = 1; i < run.train.size(); ++i) {
      fuzz::require(run.train[i].step > run.train[i - 1].step && run.train[i].tokens > run.train[i - 1].tokens, "steps and tokens increase");
    }
    report::flatten_config(run.config);
    const report::PooledHealth pooled = report::pool(run.health, 3, 2);
    fuzz::require(pooled.sites.size() <= 2 && pooled.first_step.size() == std::min<size_t>(3, run.health.columns().size()), "health is pooled");
  });
  return 0;
}
