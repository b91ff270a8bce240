// octet train
#pragma once

namespace octet {

// argv[0] is "train". Returns the exit code; throws octet::Error.
int run_train(int argc, char** argv);

}  // namespace octet
