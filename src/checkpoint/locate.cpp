// Which checkpoint of a directory to use.
#include <fmt/format.h>

#include <algorithm>

#include "checkpoint/store.h"
#include "checkpoint/strict_json.h"
#include "core/file_io.h"

namespace octet {
namespace fs = std::filesystem;
namespace {

struct Candidate {
  StepName id;
  std::string name;
};

// Directories named like checkpoints; the newest first, a replaced one after its replacement.
std::vector<Candidate> candidates(const fs::path& directory) {
  std::vector<Candidate> found;
  std::error_code error;
  if (!fs::exists(directory, error)) return found;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    std::error_code not_directory;
    if (const auto id = parse_step_name(name); id && it->is_directory(not_directory)) found.push_back({*id, name});
  }
  if (error) throw_io_error("list", directory, error.value(), ExitCode::checkpoint);
  std::sort(found.begin(), found.end(),
            [](const Candidate& a, const Candidate& b) { return a.id.step != b.id.step ? a.id.step > b.id.step : a.id.replaced < b.id.replaced; });
  return found;
}

// The step LATEST names; says in warnings why there is none.
std::optional<int64_t> latest_step(const fs::path& directory, std::vector<std::string>& warnings) {
  const fs::path path = directory / latest_file;
  std::error_code error;
  if (!fs::exists(path, error)) {
    warnings.push_back(fmt::format("{}: missing, taking the newest sound checkpoint", path.string()));
    return std::nullopt;
  }
  try {
    std::string text = read_file(path, 256, ExitCode::checkpoint);
    if (text.ends_with('\n')) text.pop_back();
    if (const auto id = parse_step_name(text); id && !id->replaced) return id->step;
    warnings.push_back(fmt::format("{}: holds {}, not the name of a checkpoint; taking the newest sound one", path.string(), printable(text)));
  } catch (const Error& e) {
    warnings.push_back(fmt::format("{}; taking the newest sound checkpoint", e.what()));
  }
  return std::nullopt;
}

void open_and_verify(const fs::path& path, int64_t step, Verify verify) {
  const Checkpoint checkpoint = Checkpoint::open(path);
  if (checkpoint.step() != step)
    throw Error(ExitCode::checkpoint, fmt::format("holds step {}, not the one of its name", checkpoint.step()), path.string());
  if (verify == Verify::checksums) checkpoint.verify_all();
}

}  // namespace

bool has_checkpoints(const fs::path& checkpoints_dir) {
  std::error_code error;
  return !candidates(checkpoints_dir).empty() || fs::exists(checkpoints_dir / latest_file, error);
}

std::optional<fs::path> latest_checkpoint(const fs::path& checkpoints_dir, std::vector<std::string>& warnings, Verify verify) {
  if (!has_checkpoints(checkpoints_dir)) return std::nullopt;
  auto order = candidates(checkpoints_dir);
  const auto named = latest_step(checkpoints_dir, warnings);
  if (named) {
    // Later steps than LATEST's belong to a run that was taken back, or were cut off before LATEST moved: they come last, nearest first.
    const auto middle = std::stable_partition(order.begin(), order.end(), [&](const Candidate& c) { return c.id.step <= *named; });
    std::stable_sort(middle, order.end(), [](const Candidate& a, const Candidate& b) { return a.id.step < b.id.step; });
    if (middle != order.end()) {
      warnings.push_back(
          fmt::format("{}: {} is later than the checkpoint LATEST names ({})", checkpoints_dir.string(), middle->name, step_directory_name(*named)));
    }
  }
  for (const auto& c : order) {
    const fs::path path = checkpoints_dir / c.name;
    try {
      open_and_verify(path, c.id.step, verify);
    } catch (const Error& e) {
      warnings.push_back(fmt::format("{}; {} is not used", e.what(), c.name));
      continue;
    }
    if (named && c.name != step_directory_name(*named)) {
      warnings.push_back(fmt::format("{}: falling back to {} instead of {}", checkpoints_dir.string(), c.name, step_directory_name(*named)));
    }
    return path;
  }
  throw Error(
      ExitCode::checkpoint,
      order.empty() ? "LATEST is there, but no checkpoint" : fmt::format("none of {} checkpoints is usable: {}", order.size(), warnings.back()),
      checkpoints_dir.string(), "restore one from a copy, or start in another run directory");
}

fs::path resolve_checkpoint(const fs::path& d, std::vector<std::string>& warnings, Verify verify) {
  std::error_code error;
  if (!fs::is_directory(d, error))
    throw Error(ExitCode::checkpoint, "no such directory", d.string(), "give a checkpoint, a directory of checkpoints or a run directory");
  if (fs::exists(d / manifest_file, error)) return d;
  for (const auto& directory : {d, d / "checkpoints"}) {
    if (const auto found = latest_checkpoint(directory, warnings, verify)) return *found;
  }
  throw Error(ExitCode::checkpoint, "holds no checkpoint", d.string(), "give a checkpoint, a directory of checkpoints or a run directory");
}

}  // namespace octet
