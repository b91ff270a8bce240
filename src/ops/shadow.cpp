#include "ops/shadow.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/error.h"

namespace octet {

void Shadow::begin(std::string phase, int64_t dump_step) {
  phase_ = std::move(phase);
  dump_step_ = dump_step;
  calls_ = 0;
  worst_ = 0;
  worst_op_.clear();
}

void Shadow::call(const char* op) {
  op_ = op;
  ++calls_;
  ++totals_[op_].calls;
}

void Shadow::compared(const std::string& result, const Agreement& a) {
  Total& total = totals_[op_];
  if (a.differing == 0) {
    total.worst = std::max(total.worst, a.worst);
    if (a.worst > worst_) {
      worst_ = a.worst;
      worst_op_ = op_;
    }
    return;
  }
  const std::string place = places_.empty() ? std::string() : " in " + places_.back();
  const std::string distance = std::isfinite(a.units) ? fmt::format("{:.3g} times what is allowed", a.units) : std::string("the same bits are expected");
  const std::string module = place.starts_with(" in layers.") ? places_.back().substr(0, places_.back().find(' ')) : "*";
  const std::string dump = dump_step_ > 0 ? fmt::format("without run.shadow, --dump \"{}:{}\" writes the step's tensors; ", dump_step_, module) : std::string();
  throw Error(ExitCode::verdict_no,
              fmt::format("the GPU and the CPU disagree in {} of {} elements of {}; the first, row {} column {}, is {:.9g} on the GPU and {:.9g} on the CPU: {}", a.differing,
                          a.elements, result, a.row, a.col, a.got, a.want, distance),
              fmt::format("{}, call {}, {}{}", phase_, calls_, op_, place),
              dump + "tests/parity compares the operator by itself: build/release/tests/parity_cuda on this machine");
}

std::string Shadow::summary() const {
  const std::string largest = worst_op_.empty() ? std::string("no difference") : fmt::format("largest difference {:.2g} of what is allowed ({})", worst_, worst_op_);
  return fmt::format("shadow: {}: {} operator calls agree with the CPU, {}", phase_, calls_, largest);
}

}  // namespace octet
