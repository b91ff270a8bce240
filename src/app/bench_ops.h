// octet bench gemm | quantize | attention.
#pragma once
#include <string>

namespace octet {

// what: "gemm", "quantize" or "attention"; argv[1] is that word.
int run_bench_ops(const std::string& what, int argc, char** argv);

}  // namespace octet
