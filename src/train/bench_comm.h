// Communication benchmark: the operations of a group of all ranks by themselves, on the memory and through the backend that training with this config would use.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "comm/world.h"
#include "config/run_config.h"

namespace octet {

struct CommTiming {
  std::string operation;   // "all_reduce", "reduce_scatter", "all_gather"
  Dtype dtype = Dtype::f32;
  int64_t bytes = 0;       // of the whole tensor
  double ms = 0, min_ms = 0, max_ms = 0;   // of one operation: median and extremes over rounds, of the slowest rank
  // What a link to each rank moves, whatever way the bytes take: 2 (n - 1) / n of an all-reduce's bytes, (n - 1) / n of the others' (the bus bandwidth of NVIDIA's nccl-tests).
  double bus_bytes_per_s = 0;
};

struct CommBench {
  std::string machine, backend;
  int ranks = 0;
  std::vector<CommTiming> rows;
};

// bytes: sizes of tensors. all: the group of all ranks, of the host. The result is the same on every rank. A round repeats an operation until it takes 20 ms.
CommBench bench_comm(const RunConfig& config, const std::vector<int64_t>& bytes, int rounds, World& world, Comm& all);

}  // namespace octet
