// octet bench comm: times of collective operations between the ranks of a job.
#pragma once

namespace octet {

// argv[0] is the word "bench". Returns the exit code; throws octet::Error.
int run_bench_comm(int argc, char** argv);

}  // namespace octet
