// RunCollector: turns the records of one run, in the order they were written, into RunMetrics. Used by the readers of metrics.jsonl, CSV
// and TensorBoard files. Where the step counter goes back, the later record counts.
#pragma once
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "report/run_metrics.h"

namespace octet::report {

constexpr int64_t kMaxTokens = int64_t{1} << 53;  // beyond it doubles, and so the charts, lose exactness

// Throws Error(data).
[[noreturn]] void refuse_run(const std::string& where, const std::string& what, const std::string& fix);

class RunCollector {
 public:
  explicit RunCollector(RunMetrics& run) : run_(run) {}

  // A line of metrics.jsonl; kinds other than train, valid, event and stats are passed over.
  // Throws Error(data) that names `where` for a line whose fields are not as documented.
  void add(const nlohmann::json& line, const std::string& where);
  void add(const TrainPoint& point);
  void add(const ValidPoint& point) { run_.valid.push_back(point); }  // tokens -1: those of the train record of its step

  // Gives validations their tokens, sorts them, marks non-finite steps and checks that tokens grow with steps. Throws Error(data).
  void finish(const std::string& where);

 private:
  void add_train(const nlohmann::json& line, const std::string& where);
  void add_event(const nlohmann::json& line, const std::string& where);
  void keep_event(RunEvent event);
  int64_t tokens_at(int64_t step, const std::string& where) const;

  RunMetrics& run_;
  std::set<int64_t> non_finite_;
};

}  // namespace octet::report
