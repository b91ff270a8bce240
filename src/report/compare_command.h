// What `octet compare` does, without its command line: reads runs, compares, prints, writes reports.
#pragma once
#include <filesystem>
#include <ostream>
#include <vector>

#include "core/error.h"
#include "report/compare.h"

namespace octet::report {

struct CompareRequest {
  std::vector<std::filesystem::path> runs, baselines, twins;
  std::filesystem::path html, json, svg;  // empty: not wanted
  CompareOptions options;
};

// All inputs are read and compared before anything is printed or written. A run named among the baselines or twins too is dropped from
// `runs`. Returns ok, or verdict_no when max_gap_percent is given and a group is not below it.
// Throws what read_run() and compare() do; Error(config) for an output that is an input or cannot be written, Error(checkpoint)
// on a full disk. Each report appears under its name only when it is complete.
ExitCode run_comparison(const CompareRequest& request, std::ostream& out);

}  // namespace octet::report
