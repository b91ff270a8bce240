#include "app/ckpt.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "app/cli.h"
#include "checkpoint/inspect.h"
#include "config/nearest.h"
#include "config/resume_diff.h"
#include "core/error.h"
#include "report/table.h"

namespace octet {
namespace {

constexpr const char* kHelp =
    "Usage: octet ckpt ls D...             checkpoints with step, size, tensors, types, and whether each is complete\n"
    "       octet ckpt verify D...         reads every byte against its checksum; exit code 1 when one is damaged\n"
    "       octet ckpt diff A B [--all]    what differs in config, state and each tensor; exit code 0 equal, 1 different\n\n"
    "D is a checkpoint, a directory of checkpoints or a run directory (ls and verify take all its checkpoints, diff the one a run\n"
    "would resume from). diff does not count keys that may change on resume without effect (class \"free\"), such as run.dir, nor\n"
    "code_version; --all lists every tensor that differs, not the first 20.\n\n"
    "Examples\n"
    "  octet ckpt ls runs/blockwise\n"
    "  octet ckpt verify runs/*\n"
    "  octet ckpt diff runs/bf16/checkpoints/step_0000000100 runs/blockwise/checkpoints/step_0000000100\n";

constexpr size_t kShownTensors = 20;

struct Words {
  std::vector<std::string> directories;
  bool all = false, help = false;
};

Words read_words(const std::string& command, int argc, char** argv) {
  Words w;
  const std::vector<std::string> flags = command == "diff" ? std::vector<std::string>{"--all", "--help"} : std::vector<std::string>{"--help"};
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--help" || word == "-h") {
      w.help = true;
    } else if (word == "--all" && command == "diff") {
      w.all = true;
    } else if (!word.empty() && word[0] == '-') {
      cli::fail_unknown("flag", word, flags);
    } else {
      w.directories.push_back(word);
    }
  }
  return w;
}

std::string types_text(const CheckpointSummary& s) {
  std::string out;
  for (const auto& [type, count] : s.types) out += fmt::format("{}{} {}", out.empty() ? "" : ", ", count, type);
  return out;
}

int list(const std::vector<std::string>& directories) {
  for (const std::string& d : directories) {
    Table t({{"checkpoint", Table::Align::left}, {"step"}, {"size"}, {"tensors"}, {"types", Table::Align::left}, {"", Table::Align::left}});
    for (const CheckpointSummary& s : list_checkpoints(d)) {
      if (s.fault.empty()) {
        t.add_row({terminal_text(s.name), std::to_string(s.step), human_bytes(s.bytes), std::to_string(s.tensors), types_text(s), s.latest ? "complete, LATEST" : "complete"});
      } else {
        const bool unfinished = s.fault.rfind("unfinished", 0) == 0;
        t.add_row({terminal_text(s.name), "", "", "", "", (unfinished ? "" : s.latest ? "damaged, LATEST: " : "damaged: ") + terminal_text(s.fault)});
      }
    }
    if (directories.size() > 1) fmt::print("{}\n", terminal_text(d));
    fmt::print("{}", t.text());
    if (const std::string fault = latest_fault(d); !fault.empty()) fmt::print("warning: {}\n", fault);
  }
  return 0;
}

int verify(const std::vector<std::string>& directories) {
  size_t good = 0, damaged = 0;
  for (const std::string& d : directories) {
    for (const CheckpointSummary& s : list_checkpoints(d)) {
      const std::string shown = terminal_text(s.path.string());
      if (s.fault.rfind("unfinished", 0) == 0) {
        fmt::print("{}: {}, not counted\n", shown, s.fault);
        continue;
      }
      std::vector<std::string> faults = checkpoint_faults(s.path);
      if (faults.empty() && !s.fault.empty()) faults.push_back(s.fault);
      if (faults.empty()) {
        ++good;
        fmt::print("{}: good; {} tensors, {}\n", shown, s.tensors, human_bytes(s.bytes));
        continue;
      }
      ++damaged;
      for (const std::string& fault : faults) fmt::print("{}: damaged: {}\n", shown, terminal_text(fault));
    }
    if (const std::string fault = latest_fault(d); !fault.empty()) fmt::print("warning: {}: {}\n", terminal_text(d), fault);
  }
  fmt::print("{} good, {} damaged\n", good, damaged);
  return static_cast<int>(damaged == 0 ? ExitCode::ok : ExitCode::verdict_no);
}

Checkpoint open_for_diff(const std::string& d) {
  std::vector<std::string> warnings;
  const auto path = resolve_checkpoint(d, warnings, Verify::checksums);
  for (const std::string& w : warnings) fmt::print("warning: {}\n", terminal_text(w));
  return Checkpoint::open(path);
}

nlohmann::json config_of(const Checkpoint& c) {
  const nlohmann::json& state = c.state();
  return state.is_object() && state.contains("config") && state["config"].is_object() ? state["config"] : nlohmann::json::object();
}

// Both return whether anything that counts differs.
bool print_state(const CheckpointDiff& diff, const Checkpoint& a, const Checkpoint& b) {
  Table t({{"state and config", Table::Align::left}, {"first", Table::Align::left}, {"second", Table::Align::left}});
  bool counts = false, any = false;
  for (const StateDifference& s : diff.state) {
    any = true;
    counts = counts || s.pointer != "/code_version";
    t.add_row({terminal_text(printable(s.pointer.substr(std::min<size_t>(1, s.pointer.size())), 100)), change_text(s.first), change_text(s.second)});
  }
  for (const ConfigChange& c : config_changes(config_of(a), config_of(b))) {
    any = true;
    counts = counts || c.on_resume != OnResume::free;
    t.add_row({terminal_text("config " + printable(c.path, 100)), change_text(c.before), change_text(c.now)});
  }
  fmt::print("{}", any ? t.text() : "state and config: equal\n");
  return counts;
}

bool print_tensors(const CheckpointDiff& diff, bool all) {
  if (diff.different.empty()) {
    fmt::print("tensors: all {} are equal\n", diff.tensors);
    return false;
  }
  Table t({{"tensor", Table::Align::left}, {"differing"}, {"of"}, {"max abs"}, {"max rel"}, {"", Table::Align::left}});
  const size_t shown = all ? diff.different.size() : std::min(kShownTensors, diff.different.size());
  for (size_t i = 0; i < shown; ++i) {
    const TensorDifference& d = diff.different[i];
    const std::string label = terminal_text(printable(d.group + ": " + d.name, 120));
    if (!d.what.empty()) {
      t.add_row({label, "", "", "", "", d.what});
    } else {
      t.add_row({label, std::to_string(d.differing), std::to_string(d.elements), fmt::format("{:.3g}", d.max_abs), fmt::format("{:.3g}", d.max_rel),
                 d.nonfinite ? fmt::format("{} not finite", d.nonfinite) : ""});
    }
  }
  fmt::print("{}", t.text());
  if (shown < diff.different.size()) fmt::print("and {} more (--all lists them)\n", diff.different.size() - shown);
  fmt::print("tensors: {} of {} differ\n", diff.different.size(), diff.tensors);
  return true;
}

int diff(const Words& words) {
  if (words.directories.size() != 2) throw Error(ExitCode::usage, fmt::format("takes two checkpoints, not {}", words.directories.size()), "octet ckpt diff", "see octet ckpt --help");
  const Checkpoint a = open_for_diff(words.directories[0]), b = open_for_diff(words.directories[1]);
  const CheckpointDiff result = diff_checkpoints(a, b);
  fmt::print("first   {} (step {})\nsecond  {} (step {})\n", terminal_text(a.path().string()), a.step(), terminal_text(b.path().string()), b.step());
  const bool state = print_state(result, a, b), tensors = print_tensors(result, words.all);
  return static_cast<int>(state || tensors ? ExitCode::verdict_no : ExitCode::ok);
}

}  // namespace

int run_ckpt(int argc, char** argv) {
  const std::vector<std::string> commands = {"ls", "verify", "diff"};
  if (argc < 2) throw Error(ExitCode::usage, "a command is missing: ls, verify or diff", "octet ckpt", "see octet ckpt --help");
  const std::string command = argv[1];
  const bool known = std::find(commands.begin(), commands.end(), command) != commands.end();
  if (!known && command != "--help" && command != "-h") cli::fail_unknown("command", command, commands);
  const Words words = read_words(command, argc - 1, argv + 1);
  if (words.help || !known) {
    fmt::print("{}", kHelp);
    return 0;
  }
  if (words.directories.empty()) throw Error(ExitCode::usage, "a checkpoint or run directory is missing", "octet ckpt " + command, "see octet ckpt --help");
  if (command == "diff") return diff(words);
  return command == "ls" ? list(words.directories) : verify(words.directories);
}

}  // namespace octet
