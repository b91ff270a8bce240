// Errors that all ranks learn of. A rank that fails alone would leave the others waiting in their next operation; behind an agreement all go on, or all end.
#pragma once
#include <functional>
#include <string>

#include "comm/world.h"

namespace octet {

// Runs `work`, on every rank of the group (null: this process alone). When it throws an Error on any, all throw that of the first such rank, marked as shared; unless
// all ranks have the same one, it says which rank and host it comes from. work must not wait for other ranks.
void agree(Comm* all, const World& world, const std::function<void()>& work);
// What the group's first rank finds, on every rank; its error too.
std::string from_first(Comm* all, const World& world, const std::function<std::string()>& find);

// In a handler, by the exception that is being handled: ends this process at once with the error's code and line, and the other ranks with it; when the error is shared they end by themselves, and only
// the first one prints. For errors in the middle of the work: what operations in flight write to must not be freed before the process is gone.
[[noreturn]] void end_rank(World& world);

}  // namespace octet
