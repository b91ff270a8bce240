#include "checkpoint/inspect.h"

#include <fmt/format.h>

#include <algorithm>

#include "checkpoint/strict_json.h"
#include "core/file_io.h"

namespace octet {
namespace fs = std::filesystem;
namespace {

bool is_checkpoint(const fs::path& d) {
  std::error_code error;
  if (fs::exists(d / manifest_file, error)) return true;
  // A damaged one may lack its manifest.
  const fs::path whole = fs::weakly_canonical(d, error);
  return parse_step_name(whole.filename().string()).has_value();
}

// "step_0000000012.tmp.345": being written, or left behind.
bool is_unfinished(const std::string& name) { return name.rfind("step_", 0) == 0 && name.find(".tmp.") != std::string::npos; }

std::vector<std::string> names_in(const fs::path& directory) {
  std::vector<std::pair<int64_t, std::string>> finished;
  std::vector<std::string> unfinished;
  std::error_code error;
  if (!fs::is_directory(directory, error)) return {};
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    std::error_code ignored;
    if (!it->is_directory(ignored)) continue;
    if (const auto id = parse_step_name(name)) {
      finished.emplace_back(id->step, name);
    } else if (is_unfinished(name)) {
      unfinished.push_back(name);
    }
  }
  if (error) throw_io_error("list", directory, error.value(), ExitCode::checkpoint);
  std::sort(finished.begin(), finished.end());
  std::sort(unfinished.begin(), unfinished.end());
  std::vector<std::string> out;
  for (auto& [step, name] : finished) out.push_back(std::move(name));
  out.insert(out.end(), unfinished.begin(), unfinished.end());
  return out;
}

// The name in CHECKPOINTS/LATEST; empty when it is missing or no name.
std::string latest_name(const fs::path& directory) {
  std::error_code error;
  if (!fs::is_regular_file(directory / "LATEST", error)) return {};
  try {
    std::string text = read_file(directory / "LATEST", 256, ExitCode::checkpoint);
    if (text.ends_with('\n')) text.pop_back();
    return parse_step_name(text) ? text : std::string();
  } catch (const Error&) {
    return {};  // a damaged LATEST marks no checkpoint; resuming says more
  }
}

CheckpointSummary summarize(const fs::path& path, const std::string& latest) {
  CheckpointSummary s;
  s.path = path;
  std::error_code error;
  s.name = fs::weakly_canonical(path, error).filename().string();
  s.latest = !latest.empty() && s.name == latest;
  if (is_unfinished(s.name)) {
    s.fault = "unfinished: being written, or left by a process that died (the next save removes it)";
    return s;
  }
  try {
    const Checkpoint c = Checkpoint::open(path);
    s.step = c.step();
    if (const auto named = parse_step_name(s.name); named && named->step != s.step) s.fault = fmt::format("its name says step {}, its manifest step {}", named->step, s.step);
    for (const auto& [file, bytes] : c.manifest().files) s.bytes += bytes;
    for (const NamedTensor& t : c.list()) {
      ++s.tensors;
      ++s.types[std::string(name(t.dtype))];
    }
  } catch (const Error& e) {
    s.fault = e.what();
  }
  return s;
}

}  // namespace

std::vector<CheckpointSummary> list_checkpoints(const fs::path& d) {
  const char* const fix = "give a checkpoint, a directory of checkpoints or a run directory";
  std::error_code error;
  if (!fs::is_directory(d, error)) throw Error(ExitCode::checkpoint, "no such directory", d.string(), fix);
  if (is_checkpoint(d)) {
    const fs::path whole = fs::weakly_canonical(d, error);
    return {summarize(d, latest_name(whole.parent_path()))};
  }
  for (const fs::path& directory : {d, d / "checkpoints"}) {
    const auto names = names_in(directory);
    if (names.empty()) continue;
    const std::string latest = latest_name(directory);
    std::vector<CheckpointSummary> out;
    for (const std::string& name : names) out.push_back(summarize(directory / name, latest));
    return out;
  }
  throw Error(ExitCode::checkpoint, "holds no checkpoint", d.string(), fix);
}

std::string latest_fault(const fs::path& d) {
  std::error_code error;
  for (const fs::path& directory : {d, d / "checkpoints"}) {
    if (is_checkpoint(d) || names_in(directory).empty()) continue;
    const std::string latest = latest_name(directory);
    if (latest.empty()) return "LATEST is missing or names no checkpoint: a resumed run would search for the newest sound one";
    if (!fs::exists(directory / latest, error)) return fmt::format("LATEST names {}, which is not there", latest);
    return {};
  }
  return {};
}

std::vector<std::string> checkpoint_faults(const fs::path& directory) {
  std::vector<std::string> faults;
  try {
    const Checkpoint c = Checkpoint::open(directory);
    std::map<std::string, SafetensorsFile> shards;
    for (const auto& [file, bytes] : c.manifest().files) shards.emplace(file, SafetensorsFile::open(directory / file));
    for (const auto& [group, tensors] : c.manifest().groups) {
      for (const auto& [tensor, logical] : tensors) {
        for (const Box& box : logical.boxes) {
          const uint64_t found = shards.at(box.file).checksum(box.key);
          if (found == box.checksum) continue;
          faults.push_back(fmt::format("{}: tensor {} of group {}: checksum {:016x}, {:016x} was written", box.file, printable(tensor), group, found, box.checksum));
        }
      }
    }
  } catch (const Error& e) {
    faults.push_back(e.what());
  }
  return faults;
}

}  // namespace octet
