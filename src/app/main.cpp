// octet <subcommand> ...: finds the subcommand, turns exceptions into one line on stderr and an exit code.
#include <csignal>
#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "app/bench.h"
#include "app/ckpt.h"
#include "app/cli.h"
#include "app/compare.h"
#include "app/data.h"
#include "app/doctor.h"
#include "app/train.h"
#include "config/nearest.h"
#include "core/error.h"
#include "core/version.h"

namespace {

using octet::Error;
using octet::ExitCode;

struct Subcommand {
  const char* name;
  int (*run)(int argc, char** argv);
  const char* doc;
};

const Subcommand kSubcommands[] = {
    {"train", octet::run_train, "pretrain a model from a JSON config"},
    {"compare", octet::run_compare, "compare the loss curves of runs, with interval and verdict"},
    {"data", octet::run_data, "build, inspect and verify token files"},
    {"ckpt", octet::run_ckpt, "list, verify and compare checkpoints"},
    {"bench", octet::run_bench, "measure training steps and operators"},
    {"doctor", octet::run_doctor, "what this machine has, and which recipes are native, emulated or refused here"},
};

std::string help_text() {
  std::string text = "Octet trains Llama-style language models in FP8 and BF16.\n\nUsage: octet <subcommand> [flags]\n\nSubcommands\n";
  for (const Subcommand& s : kSubcommands) text += fmt::format("  {:<10}{}\n", s.name, s.doc);
  text +=
      "\nFlags\n  --help     this text\n  --version  print the version\n\n"
      "octet <subcommand> --help explains each. A first run: scripts/quickstart.sh; every config key: docs/reference/config.md\n";
  return text;
}

int run_help(const Subcommand& s) {
  std::string name = s.name, flag = "--help";
  char* words[] = {name.data(), flag.data(), nullptr};
  return s.run(2, words);
}

int dispatch(int argc, char** argv) {
  if (argc < 2) throw Error(ExitCode::usage, "no subcommand is given", {}, "see octet --help");
  const std::string word = argv[1];
  const bool help = word == "--help" || word == "-h" || word == "help";
  if (help && argc == 2) {
    fmt::print("{}", help_text());
    return 0;
  }
  if (word == "--version") {
    fmt::print("octet {}\n", octet::version);
    return 0;
  }
  // "octet help train" is "octet train --help".
  const std::string asked = help ? argv[2] : word;
  std::vector<std::string> names = {"--help", "--version"};
  for (const Subcommand& s : kSubcommands) {
    if (asked == s.name) return help ? run_help(s) : s.run(argc - 1, argv + 1);
    names.push_back(s.name);
  }
  octet::cli::fail_unknown(asked[0] == '-' ? "flag" : "subcommand", asked, names);
}

int report(ExitCode code, const std::string& message) {
  fmt::print(stderr, "octet: error: {}\n", octet::printable(message, 2000));
  return static_cast<int>(code);
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);   // the write fails instead, and says so
  int code = 0;
  try {
    code = dispatch(argc, argv);
  } catch (const Error& e) {
    return report(e.code, e.what());
  } catch (const std::bad_alloc&) {
    return report(ExitCode::device, "out of memory (use a smaller model, micro-batch, sequence or data.prefetch; octet train --dry-run prints the plan)");
  } catch (const std::exception& e) {
    return report(ExitCode::internal, fmt::format("internal error: {} (please report this with the command line)", e.what()));
  }
  // A full disk behind a redirected stdout shows at the latest here.
  if (std::fflush(stdout) != 0 && code == 0) return report(ExitCode::checkpoint, "cannot write to standard output (is the disk full?)");
  return code;
}
