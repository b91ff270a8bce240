// What a run saves and how it goes on: the bridge between Engine and the checkpoint store.
//
// Groups: "model" FP32 masters under Hugging Face names, "optimizer" exp_avg/NAME and exp_avg_sq/NAME, "state" fp8/scale and
// fp8/amax_history when a recipe keeps history. JSON state: RunState below and the resolved config.
#pragma once
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/store.h"
#include "train/engine.h"
#include "train/session.h"

namespace octet {

struct RunState {
  int64_t step = 0;              // finished steps
  int64_t samples = 0, tokens = 0;
  int64_t skipped_steps = 0, nonfinite_elements = 0;
  std::vector<SourceState> sources;  // `samples` and `tokens` by source
  BlendState blend;
};

// How a job's ranks talk in the checkpoint store. The mesh outlives it.
SaveGroup save_group(const Mesh& mesh);

// Called by all ranks of a job.
std::filesystem::path save_run(const std::filesystem::path& checkpoints_dir, int64_t keep_last, Engine& engine, const RunState& state, const nlohmann::json& resolved);

// The state a checkpoint was saved with, for what must be known before the engine and the sampler are built.
RunState read_state(const Checkpoint& checkpoint);

// Loads everything into engine. Returns notes about what could not be taken over (a recipe with other quantized tensors starts its histories anew).
// Throws Error(checkpoint) for missing, unexpected or misshapen tensors.
std::vector<std::string> restore_run(const Checkpoint& checkpoint, Engine& engine);
// The algorithms of matrix products the run was using, for Engine::prepare_products; empty, with a note, when the device or its library is another one.
ProductChoices saved_products(const Checkpoint& checkpoint, Machine& machine, std::vector<std::string>& notes);
// Loads the weights alone.
void load_weights(const Checkpoint& checkpoint, Engine& engine);

}  // namespace octet
