// Shadow: the accounts of a run whose operators are computed on the GPU and again on the CPU, and compared (run.shadow). A debugging aid: a step takes minutes.
//
// ops/dispatch.cpp takes a context with a shadow to shadow_ops.h, which says of each operator what it reads and writes and how closely the two must agree;
// mirror.h does the work. The GPU computes exactly what it computes without a shadow.
// Errors: Error(verdict_no) at the first result that disagrees.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/agreement.h"
#include "core/trace.h"

namespace octet {

class Shadow {
 public:
  // A phase of the run begins, "step 3" or "validation": its calls are counted from 1. dump_step: for the remedy of an error, 0 when no step can be dumped.
  void begin(std::string phase, int64_t dump_step = 0);
  // A call begins.
  void call(const char* op);
  // What the present call wrote, compared. Throws when it disagrees.
  void compared(const std::string& result, const Agreement& agreement);

  // Where spans go, so that errors name the module: the innermost span that is open.
  Tracer& spans() { return spans_; }

  struct Total {
    int64_t calls = 0;
    double worst = 0;   // largest difference as a multiple of what is allowed
  };
  const std::map<std::string, Total>& totals() const { return totals_; }   // by operator
  std::string summary() const;   // of the present phase, one line

 private:
  std::map<std::string, Total> totals_;
  std::string phase_, op_, worst_op_;
  int64_t calls_ = 0, dump_step_ = 0;
  double worst_ = 0;
  std::vector<std::string> places_;
  Tracer spans_{{.push = [this](const char* name) { places_.emplace_back(name); }, .pop = [this] { places_.pop_back(); }, .settle = {}}, 0, 0};
};

}  // namespace octet
