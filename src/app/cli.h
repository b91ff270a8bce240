// Command-line splitting shared by the subcommands: flags against a list, with the nearest valid name for a wrong one.
// All errors are octet::Error with ExitCode::usage.
#pragma once
#include <string>
#include <vector>

#include "config/fields.h"

namespace octet::cli {

struct Flag {
  std::string name;   // with the dashes
  FlagTakes takes = FlagTakes::value;
};

struct Given {
  std::string name;
  std::vector<std::string> values;   // empty, one, or for FlagTakes::values at least one
};

// Splits argv[1] ... argv[argc - 1] (argv[0] is the subcommand) into flags and what follows them. "--flag value" and
// "--flag=value" are alike, "-h" is "--help". Unknown flags, stray words, missing and superfluous values are errors.
std::vector<Given> split_flags(int argc, char** argv, const std::vector<Flag>& flags);

// Throws the error of an unknown word of `kind` ("subcommand", "flag") with the nearest of `valid`.
[[noreturn]] void fail_unknown(const std::string& kind, const std::string& word, const std::vector<std::string>& valid);

}  // namespace octet::cli
