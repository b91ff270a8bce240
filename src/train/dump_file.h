// Writing a step's Dump to RUN/dumps/step_NNNNNNNNNN.safetensors. docs/reference/dump.md names every tensor.
#pragma once
#include <filesystem>
#include <optional>
#include <string>

#include "model/dump.h"

namespace octet {

struct DumpRequest {
  int64_t step = 0;       // as in metrics.jsonl, from 1
  std::string modules;    // glob over module paths
};

// "STEP:GLOB"; empty text: none. Throws Error(config).
std::optional<DumpRequest> parse_dump_request(const std::string& text);

// gemm: run.cpu_gemm, or cublaslt on a GPU, which tells a checker what rounding to expect. shared_head: the head's weight is the embedding's, so its gradient has a second contribution.
std::filesystem::path write_dump(const std::filesystem::path& run_dir, const Dump& dump, int64_t step, int64_t micro_batches, const std::string& recipe,
                                 const std::string& gemm, bool shared_head);

}  // namespace octet
