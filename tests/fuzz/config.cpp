// A config file: strict JSON -> RunConfig -> checks; also as the config of a checkpoint that a run resumes from.
#include "config/config_io.h"
#include "config/resume_diff.h"
#include "fuzz.h"

using namespace octet;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Origins origins;
  nlohmann::json values;
  if (!fuzz::accepts({ExitCode::config}, [&] { values = parse_config_text(std::string(fuzz::text_of(data, size)), "input.json", &origins); })) return 0;
  static const nlohmann::json now = to_json(RunConfig{});
  auto changes = config_changes(values, now);
  fuzz::accepts({ExitCode::config}, [&] { check_config_changes(changes, {"run.seed", "data.train"}); });
  RunConfig config;
  if (!fuzz::accepts({ExitCode::config}, [&] { config = from_json(values, origins); })) return 0;
  fuzz::require(from_json(to_json(config)) == config, "a config survives the round trip");
  fuzz::accepts({ExitCode::config}, [&] { validate(config); });
  return 0;
}
