// octet data build|train-tokenizer|info|verify|dump: text to token files, and a look into them.
#pragma once

namespace octet {

// argv[1..argc-1] are the words behind `data` (argv[0] is ignored). Returns the exit code. Throws octet::Error: ExitCode::usage for an
// unparsable command line, ExitCode::config for a bad value, ExitCode::data and ExitCode::checkpoint (full disk) as the data module does.
int run_data(int argc, char** argv);

}  // namespace octet
