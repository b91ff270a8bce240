// What the report shows of each single run, cut to the bounds of a page.
#pragma once
#include <vector>

#include "report/compare.h"

namespace octet::report {

// members[0]: the baselines; members[i + 1]: the runs of group i. Curves get fewer points the more runs there are (400 to 2000 each),
// statistics at most 96 columns and 600 sites a run.
std::vector<RunDetail> run_details(const std::vector<std::vector<const RunMetrics*>>& members, const std::vector<RunMetrics>& twins);

}  // namespace octet::report
