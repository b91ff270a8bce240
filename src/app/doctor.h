// octet doctor: what this machine has, which recipes it computes, and whether a config would train here.
#pragma once

namespace octet {

// argv[0] is the subcommand. Returns the exit code: 1 when a config was given that could not start here.
int run_doctor(int argc, char** argv);

}  // namespace octet
