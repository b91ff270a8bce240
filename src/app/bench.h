// octet bench: measurements on this machine.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace octet {

// argv[0] is the word "bench". Returns the exit code; throws octet::Error.
int run_bench(int argc, char** argv);
// The number of a flag such as --rounds: 1 to 1000, or Error(config).
int bench_count(const std::string& text, const std::string& flag);

// What stands in for a config where none is given: the layer shapes of Llama-3-8B.
nlohmann::json stand_in_config(bool gpu);

}  // namespace octet
