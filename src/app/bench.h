// octet bench: measurements on this machine.
#pragma once
#include <string>

namespace octet {

// argv[0] is the word "bench". Returns the exit code; throws octet::Error.
int run_bench(int argc, char** argv);
// The number of a flag such as --rounds: 1 to 1000, or Error(config).
int bench_count(const std::string& text, const std::string& flag);

}  // namespace octet
