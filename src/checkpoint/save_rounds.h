// How the ranks of a save talk: rounds in which each does something and all learn what came of it. Used by store.cpp only.
//
// What one rank's work throws, all ranks throw after the round, as the same Error: none waits for another that has given up. What the exchange itself
// throws (a lost rank) is passed on. With one rank there is nobody to tell: the work is done, and its exceptions pass through.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "checkpoint/store.h"

namespace octet {

class SaveRounds {
 public:
  // Error(ExitCode::internal) for an impossible group.
  explicit SaveRounds(const SaveGroup& group);

  bool single() const { return group_.size == 1; }
  bool leads() const { return group_.rank == 0; }

  // Every rank works; returns every rank's text, by rank. An error says which rank on which host it befell, and how many more; the lowest rank's is taken.
  std::vector<std::string> all(const std::function<std::string()>& work) const;
  // Rank 0 works, every rank gets its text.
  std::string leader(const std::function<std::string()>& work) const;

 private:
  std::vector<std::string> exchange(const std::string& mine) const;

  const SaveGroup& group_;
};

// "rank 3 on host node7"
std::string rank_name(int rank, const std::string& host);

}  // namespace octet
