// Writing: the commit protocol and retention. Reading is in load.cpp, the choice of a checkpoint in locate.cpp.
#include "checkpoint/store.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <map>
#include <set>

#include "checkpoint/safetensors.h"
#include "core/check.h"
#include "core/file_io.h"

namespace octet {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view temporary_mark = ".tmp.";
constexpr std::string_view replaced_suffix = ".replaced";

// transformers refuses files without it.
SafetensorsMetadata shard_metadata() { return {{"format", "pt"}}; }

struct Shard {
  std::string group, file;
  std::vector<TensorBytes> tensors;
  std::vector<size_t> sources;  // indices into the caller's list
};

fs::path with_suffix(fs::path path, std::string_view suffix) { return path += suffix; }

fs::path temporary_name(const fs::path& path) { return with_suffix(path, fmt::format("{}{}", temporary_mark, ::getpid())); }

const Shape& global_shape(const TensorToSave& t) { return t.global_shape ? *t.global_shape : t.shape; }

Shape offset_of(const TensorToSave& t) {
  if (t.global_shape) return t.offset;
  return *make_shape(std::vector<int64_t>(static_cast<size_t>(t.shape.rank()), 0));
}

// A whole tensor keeps its name in the shard, so that other tools can read it; a box adds its offset.
std::string shard_key(const TensorToSave& t) {
  if (!t.global_shape || *t.global_shape == t.shape) return t.name;
  return fmt::format("{}@{}", t.name, to_string(t.offset));
}

// What would not come back from JSON as it went in.
void check_state(const nlohmann::json& value, const std::string& at, int depth = 0) {
  constexpr int max_depth = 60;  // the reader takes 64, the manifest around the state needs some
  OCTET_CHECK(depth < max_depth, "checkpoint state is nested deeper than {}", max_depth);
  OCTET_CHECK(!value.is_number_float() || std::isfinite(value.get<double>()), "checkpoint state {} is not finite, JSON cannot hold it", at);
  if (!value.is_structured()) return;
  for (const auto& [key, member] : value.items()) check_state(member, at + "/" + key, depth + 1);
}

void check_request(const SaveOptions& options, const std::vector<TensorToSave>& tensors, const nlohmann::json& state) {
  OCTET_CHECK(options.step >= 0 && options.keep_last >= 0 && options.max_shard_bytes > 0, "save options: step {}, keep_last {}, max_shard_bytes {}",
              options.step, options.keep_last, options.max_shard_bytes);
  for (const auto& t : tensors) {
    OCTET_CHECK(valid_group_name(t.group), "checkpoint group name '{}'", t.group);
    OCTET_CHECK(tensor_bytes(global_shape(t), t.dtype) && tensor_bytes(t.shape, t.dtype), "tensor {} has impossible shape {}", t.name,
                to_string(t.shape));
  }
  check_state(state, "");
}

// Cuts each group, by name, into shards of at most max_shard_bytes of tensor bytes.
std::vector<Shard> plan_shards(const std::vector<TensorToSave>& tensors, uint64_t max_shard_bytes) {
  std::map<std::string, std::map<std::string, size_t>> groups;
  for (size_t i = 0; i < tensors.size(); ++i) {
    OCTET_CHECK(groups[tensors[i].group].emplace(shard_key(tensors[i]), i).second, "tensor {} of group {} is saved twice", tensors[i].name,
                tensors[i].group);
  }
  std::vector<Shard> shards;
  for (const auto& [group, members] : groups) {
    uint64_t room = 0;
    int number = 0;
    for (const auto& [key, i] : members) {
      const auto& t = tensors[i];
      const uint64_t bytes = *tensor_bytes(t.shape, t.dtype);
      if (number == 0 || bytes > room) {
        shards.push_back({group, fmt::format("{}-{:05d}.safetensors", group, ++number), {}, {}});
        room = max_shard_bytes;
      }
      room -= std::min(room, bytes);
      shards.back().tensors.push_back({key, t.dtype, t.shape, t.data, t.fetch});
      shards.back().sources.push_back(i);
    }
  }
  return shards;
}

// Everything but the checksums, which are known once the bytes are written.
Manifest plan_manifest(const SaveOptions& options, const std::vector<TensorToSave>& tensors, const std::vector<Shard>& shards,
                       const nlohmann::json& state) {
  Manifest manifest;
  manifest.step = options.step;
  manifest.state = state;
  for (const Shard& shard : shards) {
    manifest.files[shard.file] = safetensors_file_bytes(shard.tensors, shard_metadata());
    for (size_t k = 0; k < shard.sources.size(); ++k) {
      const auto& t = tensors[shard.sources[k]];
      auto& logical = manifest.groups[t.group][t.name];
      OCTET_CHECK(logical.boxes.empty() || (logical.dtype == t.dtype && logical.shape == global_shape(t)),
                  "boxes of tensor {} differ in dtype or global shape", t.name);
      logical.dtype = t.dtype;
      logical.shape = global_shape(t);
      logical.boxes.push_back({offset_of(t), t.shape, shard.file, shard.tensors[k].name, 0});
    }
  }
  for (const auto& [group, members] : manifest.groups) {
    for (const auto& [name, logical] : members) {
      const std::string fault = tiling_fault(logical.shape, logical.boxes);
      OCTET_CHECK(fault.empty(), "tensor {}: {}", name, fault);
    }
  }
  return manifest;
}

void check_space(const fs::path& directory, const Manifest& manifest, uint64_t manifest_bytes) {
  struct statvfs st {};
  if (::statvfs(directory.c_str(), &st) != 0) throw_io_error("ask for the free space", directory, errno, ExitCode::checkpoint);
  if (st.f_blocks == 0) return;                  // the file system does not tell (some FUSE mounts); a write will
  constexpr uint64_t slack = uint64_t{1} << 20;  // directory entries and other small change; each shard adds a block for rounding
  uint64_t needed = slack + manifest_bytes;
  for (const auto& [file, bytes] : manifest.files) {
    if (__builtin_add_overflow(needed, bytes + st.f_frsize, &needed)) needed = UINT64_MAX;
  }
  uint64_t available = 0;
  if (__builtin_mul_overflow(static_cast<uint64_t>(st.f_bavail), static_cast<uint64_t>(st.f_frsize), &available)) available = UINT64_MAX;
  if (needed > available) {
    throw Error(ExitCode::checkpoint, fmt::format("not enough disk space for a checkpoint: {} bytes needed, {} available", needed, available),
                directory.string(), "free space there, lower ckpt.keep_last or choose another --run-dir");
  }
}

void remove_durably(const fs::path& path, const SaveOptions& options) {
  // Renamed first: a deletion that is cut short must not leave something that looks like a checkpoint.
  const fs::path victim = temporary_name(path);
  rename_path(path, victim, ExitCode::checkpoint);
  sync_parent_directory(path, ExitCode::checkpoint);
  if (options.after_phase) options.after_phase(SavePhase::victim_renamed);
  remove_tree(victim, ExitCode::checkpoint);
}

bool is_there(const fs::path& path) {
  std::error_code error;
  const auto status = fs::symlink_status(path, error);
  if (error && status.type() != fs::file_type::not_found) throw_io_error("inspect", path, error.value(), ExitCode::checkpoint);
  return fs::exists(status);
}

std::vector<std::string> entries(const fs::path& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) names.push_back(it->path().filename().string());
  if (error) throw_io_error("list", directory, error.value(), ExitCode::checkpoint);
  std::sort(names.begin(), names.end());
  return names;
}

// Leftovers of writers that no longer run. A live process of that number may be unrelated; its leftovers wait for a later save.
void remove_stale(const fs::path& directory) {
  for (const auto& name : entries(directory)) {
    const size_t mark = name.rfind(temporary_mark);
    if (mark == std::string::npos || (name.substr(0, mark) != latest_file && !parse_step_name(std::string_view(name).substr(0, mark)))) continue;
    const char *first = name.data() + mark + temporary_mark.size(), *last = name.data() + name.size();
    pid_t pid = 0;
    const auto parsed = std::from_chars(first, last, pid);
    if (parsed.ec != std::errc() || parsed.ptr != last || pid <= 0) continue;
    if (pid == ::getpid() || (::kill(pid, 0) != 0 && errno == ESRCH)) remove_tree(directory / name, ExitCode::checkpoint);
  }
}

void make_directory(const fs::path& directory) {
  std::error_code error;
  const bool made = fs::create_directories(directory, error);
  if (error) throw_io_error("create directory", directory, error.value(), ExitCode::checkpoint);
  if (made) sync_parent_directory(directory, ExitCode::checkpoint);
}

void write_temporary(const fs::path& temporary, const std::vector<Shard>& shards, Manifest manifest, const std::function<void(SavePhase)>& passed) {
  std::error_code error;
  fs::create_directory(temporary, error);
  if (error) throw_io_error("create directory", temporary, error.value(), ExitCode::checkpoint);
  passed(SavePhase::temporary_made);
  for (const Shard& shard : shards) {
    const auto checksums = write_safetensors(temporary / shard.file, shard.tensors, shard_metadata());
    std::map<std::string_view, uint64_t> by_key;
    for (size_t k = 0; k < checksums.size(); ++k) by_key[shard.tensors[k].name] = checksums[k];
    for (auto& [name, logical] : manifest.groups[shard.group]) {
      for (Box& box : logical.boxes) {
        if (box.file == shard.file) box.checksum = by_key.at(box.key);
      }
    }
    passed(SavePhase::shard_written);
  }
  // Last and only when all shards are durable: its presence means complete.
  write_file_atomic(temporary / manifest_file, to_text(manifest), ExitCode::checkpoint);
  passed(SavePhase::manifest_written);
}

void commit(const fs::path& temporary, const fs::path& final_path, const SaveOptions& options, const std::function<void(SavePhase)>& passed) {
  const fs::path replaced = with_suffix(final_path, replaced_suffix);
  const bool replaces = is_there(final_path);
  if (replaces) {
    if (is_there(replaced)) remove_durably(replaced, options);
    rename_path(final_path, replaced, ExitCode::checkpoint);
    passed(SavePhase::previous_moved);
  }
  try {
    rename_path(temporary, final_path, ExitCode::checkpoint);
  } catch (const Error&) {
    if (replaces) rename_path(replaced, final_path, ExitCode::checkpoint);
    throw;
  }
  sync_parent_directory(final_path, ExitCode::checkpoint);
  passed(SavePhase::committed);
}

void apply_retention(const fs::path& directory, const SaveOptions& options) {
  std::set<int64_t> kept;  // newest keep_last of steps up to the one just saved
  const auto names = entries(directory);
  std::vector<int64_t> steps;
  for (const auto& name : names) {
    const auto parsed = parse_step_name(name);
    if (parsed && !parsed->replaced && parsed->step <= options.step) steps.push_back(parsed->step);
  }
  std::sort(steps.rbegin(), steps.rend());
  const size_t keep = options.keep_last == 0 ? steps.size() : std::min(steps.size(), static_cast<size_t>(options.keep_last));
  kept.insert(steps.begin(), steps.begin() + static_cast<std::ptrdiff_t>(keep));
  for (const auto& name : names) {
    const auto parsed = parse_step_name(name);
    if (!parsed || parsed->step > options.step) continue;
    const bool superseded = parsed->replaced && parsed->step == options.step;
    const bool old = options.keep_last > 0 && !kept.contains(parsed->step);
    if (superseded || old) remove_durably(directory / name, options);
  }
}

}  // namespace

std::string step_directory_name(int64_t step) { return fmt::format("step_{:010d}", step); }

std::optional<StepName> parse_step_name(std::string_view name) {
  constexpr std::string_view prefix = "step_";
  StepName parsed;
  if (name.ends_with(replaced_suffix)) {
    parsed.replaced = true;
    name.remove_suffix(replaced_suffix.size());
  }
  if (!name.starts_with(prefix)) return std::nullopt;
  const char *first = name.data() + prefix.size(), *last = name.data() + name.size();
  const auto result = std::from_chars(first, last, parsed.step);
  // Comparing with the canonical spelling refuses signs, missing zeros and overlong numbers.
  if (result.ec != std::errc() || result.ptr != last || parsed.step < 0 || step_directory_name(parsed.step) != name) return std::nullopt;
  return parsed;
}

fs::path save_checkpoint(const fs::path& checkpoints_dir, const SaveOptions& options, const std::vector<TensorToSave>& tensors,
                         const nlohmann::json& state) {
  check_request(options, tensors, state);
  const auto passed = [&](SavePhase phase) {
    if (options.after_phase) options.after_phase(phase);
  };
  const auto shards = plan_shards(tensors, options.max_shard_bytes);
  Manifest manifest = plan_manifest(options, tensors, shards, state);
  const uint64_t manifest_bytes = to_text(manifest).size();
  OCTET_CHECK(manifest_bytes <= manifest_max_bytes, "manifest of {} bytes could not be read back", manifest_bytes);
  make_directory(checkpoints_dir);
  remove_stale(checkpoints_dir);
  check_space(checkpoints_dir, manifest, manifest_bytes);

  const fs::path final_path = checkpoints_dir / step_directory_name(options.step), temporary = temporary_name(final_path);
  try {
    write_temporary(temporary, shards, std::move(manifest), passed);
    commit(temporary, final_path, options, passed);
  } catch (...) {
    std::error_code ignored;  // the first error is the one to report; the next save tries the removal again
    fs::remove_all(temporary, ignored);
    throw;
  }
  write_file_atomic(checkpoints_dir / latest_file, final_path.filename().string() + "\n", ExitCode::checkpoint);
  passed(SavePhase::latest_written);
  apply_retention(checkpoints_dir, options);
  passed(SavePhase::done);
  return final_path;
}

}  // namespace octet
