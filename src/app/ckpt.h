// octet ckpt ls|verify|diff
#pragma once

namespace octet {

// argv[0] is "ckpt". Returns the exit code; throws octet::Error.
int run_ckpt(int argc, char** argv);

}  // namespace octet
