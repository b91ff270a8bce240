#include "app/cli.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "config/nearest.h"
#include "core/error.h"

namespace octet::cli {
namespace {

bool is_flag(std::string_view word) { return word.rfind("--", 0) == 0; }

bool is_count(std::string_view word) {
  return !word.empty() && std::all_of(word.begin(), word.end(), [](char c) { return c >= '0' && c <= '9'; });
}

[[noreturn]] void fail_stray(const std::string& word, const std::string& command) {
  const std::string shown = printable(word);
  const size_t equal = shown.find('=');
  const std::string fix = equal != std::string::npos && find_field(shown.substr(0, equal)) ? "did you mean --set " + shown + "?"
                                                                                           : "see octet " + command + " --help";
  throw Error(ExitCode::usage, "unexpected word \"" + shown + "\"", "octet " + command, fix);
}

}  // namespace

void fail_unknown(const std::string& kind, const std::string& word, const std::vector<std::string>& valid) {
  throw Error(ExitCode::usage, fmt::format("unknown {} {}", kind, printable(word)), {}, fmt::format("did you mean {}?", nearest(word, valid)));
}

std::vector<Given> split_flags(int argc, char** argv, const std::vector<Flag>& flags) {
  const std::string command = argc > 0 ? argv[0] : "";
  std::vector<std::string> names;
  for (const Flag& f : flags) names.push_back(f.name);
  std::vector<Given> out;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word.empty() || word[0] != '-' || word == "-") fail_stray(word, command);
    const size_t equal = word.find('=');
    const bool attached = equal != std::string::npos;
    const std::string name = word == "-h" ? "--help" : word.substr(0, equal);
    const auto flag = std::find_if(flags.begin(), flags.end(), [&](const Flag& f) { return f.name == name; });
    if (flag == flags.end()) fail_unknown("flag", name, names);
    Given given{name, {}};
    if (attached) given.values.push_back(word.substr(equal + 1));
    const auto next_is_value = [&] { return i + 1 < argc && !is_flag(argv[i + 1]); };
    switch (flag->takes) {
      case FlagTakes::nothing:
        if (attached) throw Error(ExitCode::usage, "takes no value", name, "write " + name + " alone");
        break;
      case FlagTakes::optional_value:
        if (!attached && i + 1 < argc && is_count(argv[i + 1])) given.values.push_back(argv[++i]);
        break;
      case FlagTakes::optional_word:
      case FlagTakes::value:
        if (!attached && next_is_value()) given.values.push_back(argv[++i]);
        break;
      case FlagTakes::values:
        while (!attached && next_is_value()) given.values.push_back(argv[++i]);
        break;
    }
    const bool needs = flag->takes == FlagTakes::value || flag->takes == FlagTakes::values;
    const bool none = given.values.empty() || (attached && given.values[0].empty());
    if (none && (needs || attached)) throw Error(ExitCode::usage, "needs a value", name, "see octet " + command + " --help");
    out.push_back(std::move(given));
  }
  return out;
}

}  // namespace octet::cli
