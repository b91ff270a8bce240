// Which part of its machine's cores a rank takes.
#pragma once
#include <vector>

#include "comm/world.h"

namespace octet {

// mine: the cores a rank may run on; local: those of every rank of its machine, itself among them. Each core is divided by the ranks that may run on it: bound ranks have
// what they are bound to, unbound ones equal parts.
double part_of_cores(const std::vector<int>& mine, const std::vector<std::vector<int>>& local);

// This rank's part of the cores it may use; where a container allows fewer than it shows, of those. Called by all ranks (all: null when there is one).
double own_cores(const World& world, Comm* all);

}  // namespace octet
