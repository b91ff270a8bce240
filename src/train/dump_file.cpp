#include "train/dump_file.h"

#include <fmt/format.h>

#include <charconv>
#include <nlohmann/json.hpp>

#include "checkpoint/safetensors.h"
#include "core/error.h"

namespace octet {
namespace {

nlohmann::json spec_json(const QuantSpec& s) {
  if (!s.quantized()) return nullptr;
  const char* scales[] = {"fp32", "pow2", "e8m0", "ue4m3"};
  const char* scalings[] = {"current", "delayed", "static"};
  return {{"format", std::string(name(s.format))},
          {"block", {s.block_rows, s.block_cols}},
          {"scale", scales[static_cast<size_t>(s.scale)]},
          {"scaling", scalings[static_cast<size_t>(s.scaling)]},
          {"rounding", s.rounding == Rounding::stochastic ? "stochastic" : "nearest"},
          {"margin", s.margin},
          {"amax_epsilon", s.amax_epsilon},
          {"overflow_scale", s.overflow_scale},
          {"fp64_divide", s.fp64_divide},
          {"hadamard", s.hadamard}};
}

}  // namespace

std::optional<DumpRequest> parse_dump_request(const std::string& text) {
  if (text.empty()) return std::nullopt;
  DumpRequest r;
  const size_t colon = std::min(text.find(':'), text.size());
  const auto [end, error] = std::from_chars(text.data(), text.data() + colon, r.step);
  if (error != std::errc() || end != text.data() + colon || colon + 1 >= text.size() || r.step < 1) {
    throw Error(ExitCode::config, fmt::format("\"{}\" is not STEP:GLOB with a step from 1", text), "--dump", "for example --dump 10:layers.0.*");
  }
  r.modules = text.substr(colon + 1);
  return r;
}

std::filesystem::path write_dump(const std::filesystem::path& run_dir, const Dump& dump, int64_t step, int64_t micro_batches, const std::string& recipe,
                                 const std::string& gemm, bool shared_head) {
  nlohmann::json specs = nlohmann::json::object(), delayed = nlohmann::json::object(), shared = nlohmann::json::array();
  for (const auto& m : dump.specs) {
    specs[m.module] = {{"x.row", spec_json(m.x_row)}, {"x.col", spec_json(m.x_col)},   {"w.row", spec_json(m.w_row)},
                       {"w.col", spec_json(m.w_col)}, {"dy.row", spec_json(m.dy_row)}, {"dy.col", spec_json(m.dy_col)}};
    if (m.module == "head" && shared_head) shared.push_back("head/lm_head");
  }
  for (const auto& d : dump.stored_scales) delayed[d.site] = {{"scale", d.scale}};
  const nlohmann::json about = {{"step", step}, {"recipe", recipe}, {"gemm", gemm}, {"micro_batches", micro_batches}, {"specs", specs}, {"delayed", delayed}, {"shared_grads", shared}};

  std::vector<TensorBytes> tensors;
  for (const auto& e : dump.entries) tensors.push_back({e.name, e.dtype, e.shape, e.bytes.data()});
  const auto dir = run_dir / "dumps";
  std::error_code failed;
  std::filesystem::create_directories(dir, failed);
  if (failed) throw Error(ExitCode::checkpoint, "cannot make the directory: " + failed.message(), dir.string(), "check permissions and free space");
  const auto path = dir / fmt::format("step_{:010d}.safetensors", step);
  write_safetensors(path, tensors, {{"dump", about.dump()}});
  return path;
}

}  // namespace octet
