// Products of a warpgroup (WGMMA), as the emulated machine keeps them: each of the 128 threads issues its part of a product; when all have, and one of them waits for
// it (or at once), it is computed from what shared memory and registers hold then.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <vector>

#include "simt.h"

namespace simt {

constexpr int warpgroup_size = 128;

// What one thread has issued.
class WarpgroupThread {
 public:
  bool finished() const { return issued_ == closed_ && ends_.empty(); }
  void close() {
    closed_ = issued_;
    ends_.push_back(closed_);
  }
  // The number of the first product that may stay unfinished when at most `pending` groups may.
  int64_t begin_finish(int pending) {
    int64_t end = 0;
    while (ends_.size() > static_cast<size_t>(pending)) {
      end = ends_.front();
      ends_.pop_front();
    }
    return end;
  }

 private:
  friend class Warpgroup;
  int64_t issued_ = 0, closed_ = 0;
  std::deque<int64_t> ends_;   // of the groups that nobody has waited for
};

class Warpgroup {
 public:
  void issue(WarpgroupThread& thread, int index, const Product& product, bool at_once);
  // Somebody waits for the products before `end`.
  void want(int64_t end) { wanted_ = std::max(wanted_, end); }
  bool finished(int64_t end) const { return first_ >= end; }
  // Computes what somebody waits for, if all threads have issued it; says whether there was something.
  bool execute_wanted();

 private:
  bool issued(int64_t end) const;
  void execute(int64_t end);

  struct Shared {
    std::array<Product, warpgroup_size> part;
    std::array<std::vector<float>, warpgroup_size> before;   // d as it was; empty where products before this one leave it in d
    int arrived = 0;
    const float* previous(size_t thread) const { return before[thread].empty() ? part[thread].d : before[thread].data(); }
  };
  static void compute(const Shared& p);

  std::deque<Shared> products_;
  int64_t first_ = 0;    // number of products_.front()
  int64_t wanted_ = 0;
};

}  // namespace simt
