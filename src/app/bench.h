// octet bench: measurements on this machine.
#pragma once

namespace octet {

// argv[0] is the word "bench". Returns the exit code; throws octet::Error.
int run_bench(int argc, char** argv);

}  // namespace octet
