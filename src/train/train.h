// The training run: everything between a validated RunConfig and an exit code.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "comm/world.h"
#include "config/run_config.h"
#include "core/error.h"
#include "core/trace.h"

namespace octet {

struct TrainOptions {
  std::string init_from;          // checkpoint or run directory whose weights (only) start the run
  double exit_after_minutes = 0;  // 0: no limit
  std::string dump;               // "STEP:GLOB", empty: none
  bool strict = false;            // any fallback, skipped step or dropped key becomes an error
  bool dry_run = false;           // print the plan, train nothing, touch nothing
  TraceHooks trace_hooks;         // of log.profile, where the program has a profiler's
  std::vector<std::string> allow_config_change;  // config paths that may differ from the checkpoint's although their class forbids it
  std::vector<std::string> derived;  // JSON pointers of config values that nobody gave: a resumed run keeps the checkpoint's
};

// Runs to the end or to a planned stop. `resolved` is the resolved config as JSON (config/config_io.h), written to the run directory and the
// checkpoints. Throws octet::Error; see docs/architecture.md for the walk through one step.
// world: the processes of the job, all of which call it; all: a group of all of them in host memory, null when this one is alone. The first rank speaks and writes.
ExitCode train(const RunConfig& config, const TrainOptions& options, const nlohmann::json& resolved, World& world, Comm* all);

}  // namespace octet
