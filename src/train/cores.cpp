#include "train/cores.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sched.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <string>

#include "core/thread_pool.h"

namespace octet {
namespace {

// Empty when the system does not tell.
std::vector<int> allowed_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  }
  return cores;
}

std::vector<int> numbers(const std::string& text) {
  std::istringstream in(text);
  std::vector<int> all;
  for (int n; in >> n;) all.push_back(n);
  return all;
}

}  // namespace

double part_of_cores(const std::vector<int>& mine, const std::vector<std::vector<int>>& local) {
  std::map<int, int> ranks;
  for (const auto& cores : local) {
    for (int core : cores) ++ranks[core];
  }
  double part = 0;
  for (int core : mine) part += 1.0 / ranks.at(core);
  return part;
}

double own_cores(const World& world, Comm* all) {
  const int usable = usable_cores();
  if (!all) return usable;
  const std::vector<int> mine = allowed_cores();
  const std::vector<std::string> texts = exchange(*all, fmt::format("{}", fmt::join(mine, " ")));
  std::vector<std::vector<int>> local;
  for (size_t r = 0; r < texts.size(); ++r) {
    if (world.hosts()[r] == world.hosts()[static_cast<size_t>(world.rank())]) local.push_back(numbers(texts[r]));
  }
  // What a container allows is its ranks' together, whatever they are bound to.
  const double even = static_cast<double>(usable) / world.local_size();
  if (mine.empty()) return even;
  const double part = part_of_cores(mine, local);
  return usable < static_cast<int>(mine.size()) ? std::min(part, even) : part;
}

}  // namespace octet
