// octet compare: runs against their baselines.
#pragma once
#include <optional>

#include "report/compare_command.h"

namespace octet {

// The request a command line asks for; argv[0] is "compare". Absent when --help was asked for and printed.
// Throws Error(usage) for an unknown flag (naming the nearest), a missing or unparsable value, or no RUN; Error(config) for a margin
// that is not positive.
std::optional<report::CompareRequest> parse_compare(int argc, char** argv);

// Returns the exit code: 0, or 1 when --max-gap says no. Throws octet::Error.
int run_compare(int argc, char** argv);

}  // namespace octet
