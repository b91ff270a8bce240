// Which algorithm multiplies, in a job of several ranks.
#pragma once
#include "comm/comm.h"
#include "ops/machine.h"

namespace octet {

// For each product that any rank has, the algorithm of the first rank that has it: timing says another on another GPU now and then, while a checkpoint has one
// choice of a product, with which the resumed ranks are to make the same bits. Only ranks whose GPU and library are this one's count. Called by all ranks.
ProductChoices agreed_choices(Comm& all, Machine& machine);

}  // namespace octet
