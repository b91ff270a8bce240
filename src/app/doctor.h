// octet doctor: what this machine can train, and why not what it cannot.
#pragma once

namespace octet {

int run_doctor(int argc, char** argv);

}  // namespace octet
