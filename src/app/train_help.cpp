#include "app/train_help.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "config/help.h"
#include "config/nearest.h"
#include "core/error.h"

namespace octet {
namespace {

std::string own_flag_line(const TrainFlag& f) { return fmt::format("  {:<27} {}\n", f.argument.empty() ? f.flag.name : f.flag.name + " " + f.argument, f.doc); }

std::string own_flags(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) {
    for (const TrainFlag& f : train_flags()) text += f.flag.name == name ? own_flag_line(f) : "";
  }
  return text;
}

std::string command_help() {
  std::string text = "Command\n";
  for (const TrainFlag& f : train_flags()) text += own_flag_line(f);
  return text;
}

constexpr const char* kUsage =
    "Usage: octet train --config FILE... [flags]\n\n"
    "Pretrains a Llama-style model in FP8 or BF16. JSON files describe the run, later ones over earlier ones; flags and --set\n"
    "change single values of it.\n\n";

constexpr const char* kExamples =
    "\nExamples\n"
    "  octet train --config configs/models/tiny_byte.json configs/recipes/blockwise.json configs/runs/quickstart.json \\\n"
    "      --data-path data/text --run-dir runs/blockwise\n"
    "  octet train --config runs/blockwise/config.resolved.json --fp8-recipe bf16 --run-dir runs/bf16      its BF16 twin\n"
    "  octet train --config runs/blockwise/config.resolved.json --resume must --train-iters 2k             a longer run\n";

std::string short_help() {
  std::string text = kUsage;
  text += "What one needs\n" + own_flags({"--config", "--set"});
  for (const char* flag : {"--data-path", "--run-dir", "--fp8-recipe", "--train-iters", "--micro-batch-size", "--global-batch-size", "--seq-length", "--lr", "--eval-interval",
                           "--save-interval", "--resume"}) {
    text += flag_help(flag);
  }
  text += own_flags({"--dry-run", "--print-config"});
  text += kExamples;
  text += fmt::format(
      "\nMore help\n"
      "  octet train --help SECTION    keys and flags of one section: {}\n"
      "  octet train --help command    flags of the command itself, such as --dump and --strict\n"
      "  octet train --help optim.lr   one key\n"
      "  octet train --help=all        everything; docs/reference/config.md has the same as a page\n"
      "Several ranks or GPUs: mpirun -np N octet train ..., docs/reference/launch.md\n",
      fmt::join(config_sections(), " "));
  return text;
}

}  // namespace

const std::vector<TrainFlag>& train_flags() {
  static const std::vector<TrainFlag> flags = {
      {{"--config", FlagTakes::values}, "FILE...", "config files, merged left to right (RFC 7396)"},
      {{"--set", FlagTakes::values}, "PATH=VALUE...", "set single values, after files and flags, e.g. --set optim.lr=3e-4"},
      {{"--init-from", FlagTakes::value}, "CKPT", "start from the weights of a checkpoint or run directory"},
      {{"--exit-after", FlagTakes::value}, "MINUTES", "save and stop with exit code 21 after so many minutes"},
      {{"--allow-config-change", FlagTakes::values}, "PATH...", "resume although this key differs from the checkpoint's and its class is \"refused\""},
      {{"--dump", FlagTakes::value}, "STEP:GLOB", "write operands, scales and gradients of the matching modules at that step"},
      {{"--strict", FlagTakes::nothing}, "", "any fallback, skipped step or dropped key is an error"},
      {{"--dry-run", FlagTakes::nothing}, "", "check everything and print the plan, train nothing"},
      {{"--print-config", FlagTakes::nothing}, "", "print the resolved config as JSON and stop"},
      {{"--print-schema", FlagTakes::nothing}, "", "print the JSON Schema of configs and stop"},
      {{"--print-reference", FlagTakes::nothing}, "", "print the configuration reference (Markdown) and stop"},
      {{"--help", FlagTakes::optional_word}, "[TOPIC]", "help about everything (all), a section, a key or a flag (--help=--lr)"},
  };
  return flags;
}

std::string train_help(const std::string& topic) {
  if (topic.empty()) return short_help();
  if (topic == "all") return kUsage + command_help() + "\n" + config_help() + kExamples;
  if (topic == "command") return command_help();
  for (const TrainFlag& f : train_flags()) {
    if (f.flag.name == topic) return own_flag_line(f);
  }
  if (const std::string text = config_help(topic); !text.empty()) return text;
  std::vector<std::string> topics = config_sections();
  for (const Field<RunConfig>& f : run_fields()) {
    topics.push_back(f.path);
    if (!f.flag.name.empty()) topics.push_back(f.flag.name);
  }
  throw Error(ExitCode::usage, fmt::format("there is no help about \"{}\"", printable(topic)), "octet train --help", fmt::format("did you mean {}?", nearest(topic, topics)));
}

}  // namespace octet
