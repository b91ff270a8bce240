// A run's training curves cut to what a page can carry: neighbouring steps are pooled into buckets of which mean, minimum and
// maximum are kept, so that no spike is lost.
#pragma once
#include <vector>

#include "report/run_metrics.h"

namespace octet::report {

struct PooledValues {
  std::vector<double> mean, low, high;  // of the finite values of each bucket; NaN where there are none
};

struct RunSeries {
  size_t steps = 0;                         // train lines of the run
  std::vector<int64_t> step, tokens;        // of the last line of each bucket
  std::vector<int64_t> lines;               // train lines in each bucket; all 1 when nothing was pooled
  PooledValues loss, grad_norm, lr, tokens_per_s;
  bool pooled() const { return step.size() < steps; }
};

// At most `points` >= 1 buckets of equal numbers of lines (to within one).
RunSeries pool(const RunMetrics& run, size_t points);

}  // namespace octet::report
