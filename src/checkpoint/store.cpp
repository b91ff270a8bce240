// Writing: the commit protocol, by one rank or by all of a job, and retention. What is written is planned in save_plan.h, how ranks agree is in
// save_rounds.h; reading is in load.cpp, the choice of a checkpoint in locate.cpp.
#include "checkpoint/store.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <random>
#include <set>
#include <thread>

#include "checkpoint/save_plan.h"
#include "checkpoint/save_rounds.h"
#include "core/check.h"
#include "core/file_io.h"

namespace octet {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view temporary_mark = ".tmp.";
constexpr std::string_view replaced_suffix = ".replaced";

constexpr const char* nonce_file = "nonce";  // in the temporary directory, until every rank has seen it

fs::path with_suffix(fs::path path, std::string_view suffix) { return path += suffix; }

fs::path temporary_name(const fs::path& path) { return with_suffix(path, fmt::format("{}{}", temporary_mark, ::getpid())); }

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

// What rank 0 tells the others about the directory it made.
struct Begun {
  std::string directory;  // name of the temporary directory
  std::string path;       // the same as rank 0 sees it
  std::string host, nonce;
  int up = 0;             // so many levels above the directory that is looked at
};

std::string random_text() {
  std::random_device source;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", source(), source(), source(), source());
}

// Rank 0: puts a nonce into the directory it made, which lets the other ranks know it from one of the same name. Returns what they are to be told.
std::string leave_nonce(const fs::path& made, const SaveGroup& group, int up) {
  const std::string nonce = random_text();
  write_file_atomic(made / nonce_file, nonce, ExitCode::checkpoint);
  const nlohmann::json begun = {{"directory", made.filename().string()}, {"path", made.string()}, {"host", group.host}, {"nonce", nonce}, {"up", up}};
  return begun.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Begun parse_begun(const std::string& text) {
  const auto begun = nlohmann::json::parse(text);
  return {begun.at("directory"), begun.at("path"), begun.at("host"), begun.at("nonce"), begun.at("up")};
}

// Rank 0: a clean place with room, and the temporary directory.
std::string begin(const fs::path& checkpoints_dir, const fs::path& temporary, const Manifest& manifest, const SaveGroup& group) {
  const uint64_t manifest_bytes = to_text(manifest).size();
  OCTET_CHECK(manifest_bytes <= manifest_max_bytes, "manifest of {} bytes could not be read back", manifest_bytes);
  make_directory(checkpoints_dir);
  remove_stale(checkpoints_dir);
  check_space(checkpoints_dir, manifest, manifest_bytes);
  std::error_code error;
  fs::create_directory(temporary, error);
  if (error) throw_io_error("create directory", temporary, error.value(), ExitCode::checkpoint);
  return group.size == 1 ? std::string() : leave_nonce(temporary, group, 0);
}

bool sees(const fs::path& directory, const std::string& nonce) {
  using clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds patience(1000), pause(20);  // a network file system may show a new directory late
  for (const auto end = clock::now() + patience;; std::this_thread::sleep_for(pause)) {
    try {
      if (read_file(directory / nonce_file, 64, ExitCode::checkpoint) == nonce) return true;
    } catch (const Error&) {  // why it cannot be read does not matter: the caller says that this rank does not see it
    }
    if (clock::now() >= end) return false;
  }
}

// Every rank sees the directory rank 0 made, or all throw the same Error.
void check_shared(const fs::path& parent, const Begun& begun, const SaveGroup& group, const SaveRounds& rounds) {
  const fs::path mine = parent / begun.directory;
  const auto answers = rounds.all([&]() -> std::string {
    if (sees(mine, begun.nonce)) return {};
    const nlohmann::json blind = {{"rank", rank_name(group.rank, group.host)}, {"path", mine.string()}};
    return blind.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  });
  const auto first = std::find_if(answers.begin(), answers.end(), [](const std::string& a) { return !a.empty(); });
  if (first == answers.end()) return;
  const auto others = std::count_if(first + 1, answers.end(), [](const std::string& a) { return !a.empty(); });
  const auto blind = nlohmann::json::parse(*first);
  std::string what = fmt::format("{} made this directory, {} does not see it", rank_name(0, begun.host), blind.at("rank").get<std::string>());
  if (const auto path = blind.at("path").get<std::string>(); path != begun.path) what += fmt::format(" as {}", path);
  if (others > 0) what += fmt::format(", and {} more", others);
  Error error(ExitCode::checkpoint, what, begun.path, "a job over several hosts needs a file system they share: choose a run directory on one");
  error.shared = true;
  throw error;
}

// This rank's shards, durably. Returns their checksums, in the order of its part's boxes.
std::string write_shards(const fs::path& temporary, const std::vector<Shard>& shards, const std::function<void(SavePhase)>& passed) {
  std::vector<uint64_t> checksums;
  for (const Shard& shard : shards) {
    const auto written = write_safetensors(temporary / shard.file, shard.tensors, shard_metadata());
    checksums.insert(checksums.end(), written.begin(), written.end());
    passed(SavePhase::shard_written);
  }
  if (!shards.empty()) sync_parent_directory(temporary / shards.front().file, ExitCode::checkpoint);
  return nlohmann::json(checksums).dump();
}

// Rank 0, when all shards are durable.
void write_manifest(const fs::path& temporary, std::vector<SavePart> parts, const std::vector<std::string>& checksums, const nlohmann::json& state) {
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    const auto sums = nlohmann::json::parse(checksums[rank]).get<std::vector<uint64_t>>();
    auto& boxes = parts[rank].boxes;
    OCTET_CHECK(sums.size() == boxes.size(), "rank {} sent {} checksums of {} boxes", rank, sums.size(), boxes.size());
    for (size_t i = 0; i < sums.size(); ++i) boxes[i].box.checksum = sums[i];
  }
  const Manifest manifest = merge_parts(parts, state);
  for (const auto& [file, bytes] : manifest.files) {  // what another host says it wrote must be here, too
    std::error_code error;
    const auto found = fs::file_size(temporary / file, error);
    if (error) throw_io_error("find the shard a rank has written", temporary / file, error.value(), ExitCode::checkpoint);
    if (found != bytes) throw Error(ExitCode::checkpoint, fmt::format("a rank wrote {} bytes, {} are there", bytes, found), (temporary / file).string());
  }
  // Its presence means complete.
  write_file_atomic(temporary / manifest_file, to_text(manifest), ExitCode::checkpoint);
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

void check_shared_directory(const fs::path& directory, const SaveGroup& group) {
  const SaveRounds rounds(group);
  if (rounds.single()) return;
  fs::path parent = fs::absolute(directory).lexically_normal(), made;
  if (!parent.has_filename()) parent = parent.parent_path();
  try {
    const std::string answer = rounds.leader([&]() -> std::string {
      std::error_code error;
      int up = 0;
      for (; !fs::is_directory(parent, error) && parent.has_relative_path(); ++up) parent = parent.parent_path();
      made = parent / fmt::format(".octet{}{}", temporary_mark, ::getpid());
      if (fs::create_directory(made, error)) return leave_nonce(made, group, up);
      made.clear();   // only what is made here is removed again
      return {};
    });
    if (!answer.empty()) {
      const Begun begun = parse_begun(answer);
      for (int i = 0; i < begun.up && !rounds.leads(); ++i) parent = parent.parent_path();
      check_shared(parent, begun, group, rounds);
    }
  } catch (...) {
    std::error_code ignored;
    if (!made.empty()) fs::remove_all(made, ignored);
    throw;
  }
  std::error_code ignored;
  if (!made.empty()) fs::remove_all(made, ignored);
}

fs::path save_checkpoint(const fs::path& checkpoints_dir, const SaveOptions& options, const std::vector<TensorToSave>& tensors,
                         const nlohmann::json& state, const SaveGroup& group) {
  const SaveRounds rounds(group);
  const auto passed = [&](SavePhase phase) {
    if (options.after_phase) options.after_phase(phase);
  };
  std::vector<Shard> shards;
  const auto plans = rounds.all([&] {
    check_request(options, tensors, rounds.leads() ? state : nlohmann::json());
    shards = plan_shards(tensors, options.max_shard_bytes, group.rank, group.size);
    return to_text(plan_part(options.step, tensors, shards));
  });

  const fs::path final_path = checkpoints_dir / step_directory_name(options.step);
  fs::path temporary = temporary_name(final_path);
  std::vector<SavePart> parts;  // rank 0's
  try {
    const std::string answer = rounds.leader([&] {
      for (const std::string& plan : plans) parts.push_back(parse_part(plan));
      std::string begun = begin(checkpoints_dir, temporary, merge_parts(parts, state), group);
      passed(SavePhase::temporary_made);
      return begun;
    });
    if (!rounds.single()) {
      const Begun begun = parse_begun(answer);
      check_shared(checkpoints_dir, begun, group, rounds);
      temporary = checkpoints_dir / begun.directory;
    }
    const auto checksums = rounds.all([&] { return write_shards(temporary, shards, passed); });
    rounds.leader([&] {
      if (!rounds.single()) remove_tree(temporary / nonce_file, ExitCode::checkpoint);
      write_manifest(temporary, std::move(parts), checksums, state);
      passed(SavePhase::manifest_written);
      commit(temporary, final_path, options, passed);
      write_file_atomic(checkpoints_dir / latest_file, final_path.filename().string() + "\n", ExitCode::checkpoint);
      passed(SavePhase::latest_written);
      apply_retention(checkpoints_dir, options);
      passed(SavePhase::done);
      return std::string();
    });
  } catch (...) {
    std::error_code ignored;  // the first error is the one to report; the next save tries the removal again
    if (rounds.leads()) fs::remove_all(temporary, ignored);
    throw;
  }
  return final_path;
}

}  // namespace octet
