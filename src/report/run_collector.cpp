#include "report/run_collector.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>

#include "core/error.h"

namespace octet::report {
namespace {

using nlohmann::json;

std::string text_of(const json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_string() ? it->get<std::string>() : std::string();
}

// An integer in [0, 2^53]; required, or absent -> -1.
int64_t count_of(const json& object, const char* key, bool required, const std::string& where) {
  const auto it = object.find(key);
  if (it == object.end() && !required) return -1;
  if (it == object.end())
    refuse_run(where, fmt::format("the line has no \"{}\"", key), "a train line needs step, tokens and loss, a valid line step and loss");
  const bool ok = it->is_number_integer() && (it->is_number_unsigned() ? it->get<uint64_t>() <= static_cast<uint64_t>(kMaxTokens)
                                                                       : it->get<int64_t>() >= 0 && it->get<int64_t>() <= kMaxTokens);
  if (!ok) refuse_run(where, fmt::format("\"{}\" is not a whole number between 0 and 2^53", key), "repair or remove the line");
  return it->get<int64_t>();
}

double number_of(const json& object, const char* key, bool required, const std::string& where) {
  const auto it = object.find(key);
  if (it == object.end() && required) refuse_run(where, fmt::format("the line has no \"{}\"", key), "a train line needs step, tokens and loss");
  if (it == object.end() || it->is_null()) return kNan;
  if (!it->is_number()) refuse_run(where, fmt::format("\"{}\" is neither a number nor null", key), "repair or remove the line");
  return it->get<double>();
}

void collect_counts(const json& value, const std::string& key, std::map<std::string, double>& out, const std::string& where) {
  if (value.is_object()) {
    for (const auto& item : value.items()) collect_counts(item.value(), key.empty() ? item.key() : key + "." + item.key(), out, where);
  } else if (value.is_number() && value.get<double>() >= 0 && !key.empty()) {
    out[key] = value.get<double>();
  } else {
    refuse_run(where, "\"quantized\" is not an object of element counts", "repair or remove the line");
  }
}

// Speeds say nothing about the training: a step too short to time is not a bad step.
bool names_a_value(const json& line) {
  const auto list = line.find("nonfinite");
  if (list == line.end() || !list->is_array()) return false;
  const std::set<std::string> speeds{"tokens_per_s", "step_ms", "mfu", "mfu_causal"};
  return std::any_of(list->begin(), list->end(), [&](const json& key) { return !key.is_string() || !speeds.contains(key.get<std::string>()); });
}

// What an event says beside its name and step, as "key value, key value".
std::string event_detail(const json& line) {
  std::string text;
  for (const auto& item : line.items()) {
    if (item.key() == "kind" || item.key() == "event" || item.key() == "step") continue;
    std::string value = item.value().is_string() ? item.value().get<std::string>() : item.value().dump(-1, ' ', true, json::error_handler_t::replace);
    if (value.size() > 200) value = value.substr(0, 197) + "...";
    text += (text.empty() ? "" : ", ") + item.key() + " " + value;
    if (text.size() > 500) return text.substr(0, 497) + "...";
  }
  return text;
}

template <class Point>
void check_increasing(const std::vector<Point>& points, const char* kind, const std::string& where) {
  for (size_t i = 1; i < points.size(); ++i) {
    if (points[i].tokens > points[i - 1].tokens) continue;
    refuse_run(where,
        fmt::format("\"tokens\" of the {} lines do not grow from step {} ({}) to step {} ({})", kind, points[i - 1].step, points[i - 1].tokens,
                    points[i].step, points[i].tokens),
        "tokens must count all tokens since the start of the run");
  }
}

}  // namespace

void refuse_run(const std::string& where, const std::string& what, const std::string& fix) { throw Error(ExitCode::data, what, where, fix); }

void RunCollector::add(const json& line, const std::string& where) {
  const std::string kind = text_of(line, "kind");
  if (kind == "train")
    add_train(line, where);
  else if (kind == "valid")
    add(ValidPoint{count_of(line, "step", true, where), count_of(line, "tokens", false, where), number_of(line, "loss", true, where)});
  else if (kind == "event")
    add_event(line, where);
  else if (kind == "stats")
    run_.health.add_stats(line, where);
}

void RunCollector::add(const TrainPoint& point) {
  const bool resumed = !run_.train.empty() && point.step <= run_.train.back().step;
  run_.health.train_line(point.step, resumed);
  if (resumed) {
    ++run_.resumes;
    keep_event({point.step, "resumed", fmt::format("steps {} to {} were trained again", point.step, run_.train.back().step)});
    while (!run_.train.empty() && run_.train.back().step >= point.step) run_.train.pop_back();
    while (!run_.valid.empty() && run_.valid.back().step >= point.step) run_.valid.pop_back();
    non_finite_.erase(non_finite_.lower_bound(point.step), non_finite_.end());
  }
  run_.train.push_back(point);
}

void RunCollector::finish(const std::string& where) {
  for (auto& point : run_.train) point.non_finite = point.non_finite || non_finite_.contains(point.step);
  run_.non_finite_after_end = !run_.train.empty() && !non_finite_.empty() && *non_finite_.rbegin() > run_.train.back().step;
  for (auto& point : run_.valid) {
    if (point.tokens < 0) point.tokens = tokens_at(point.step, where);
  }
  std::stable_sort(run_.valid.begin(), run_.valid.end(), [](const auto& a, const auto& b) { return a.step < b.step; });
  std::vector<ValidPoint> last_of_step;
  for (const auto& point : run_.valid) {
    if (!last_of_step.empty() && last_of_step.back().step == point.step)
      last_of_step.back() = point;
    else
      last_of_step.push_back(point);
  }
  run_.valid = std::move(last_of_step);
  check_increasing(run_.train, "train", where);
  check_increasing(run_.valid, "valid", where);
  if (run_.train.empty() && run_.valid.empty()) refuse_run(where, "no training step and no validation in it", "let the run make at least one step");
}

void RunCollector::add_train(const json& line, const std::string& where) {
  TrainPoint p;
  p.step = count_of(line, "step", true, where);
  p.tokens = count_of(line, "tokens", true, where);
  p.loss = number_of(line, "loss", true, where);
  p.grad_norm = number_of(line, "grad_norm", false, where);
  p.lr = number_of(line, "lr", false, where);
  p.tokens_per_s = number_of(line, "tokens_per_s", false, where);
  p.step_ms = number_of(line, "step_ms", false, where);
  const bool null_norm = line.contains("grad_norm") && !std::isfinite(p.grad_norm);
  p.non_finite = !std::isfinite(p.loss) || null_norm || names_a_value(line);
  const auto skipped = line.find("skipped");
  if (skipped != line.end() && !skipped->is_boolean()) refuse_run(where, "\"skipped\" is neither true nor false", "repair or remove the line");
  p.skipped = skipped != line.end() && skipped->get<bool>();
  add(p);
}

void RunCollector::keep_event(RunEvent event) {
  if (run_.events.size() < RunMetrics::kMaxEvents)
    run_.events.push_back(std::move(event));
  else
    ++run_.further_events;
}

void RunCollector::add_event(const json& line, const std::string& where) {
  const std::string event = text_of(line, "event");
  if (event == "stats_sites") return run_.health.add_sites(line, where);
  if (event == "summary" && line.contains("quantized")) {
    run_.quantized.clear();
    collect_counts(line["quantized"], "", run_.quantized, where);
  } else if (event == "nonfinite") {
    non_finite_.insert(count_of(line, "step", true, where));
  }
  if (event == "start" && line.contains("data")) run_.data = line["data"].dump(-1, ' ', true, json::error_handler_t::replace).substr(0, 1000);
  if (event == "summary" || event == "start" || event == "checkpoint" || event == "dump") return;  // what every run does
  const auto step = line.find("step");
  keep_event({step != line.end() && step->is_number_unsigned() ? count_of(line, "step", true, where) : -1, event, event_detail(line)});
}

int64_t RunCollector::tokens_at(int64_t step, const std::string& where) const {
  if (step == 0) return 0;
  const auto it = std::lower_bound(run_.train.begin(), run_.train.end(), step, [](const TrainPoint& p, int64_t s) { return p.step < s; });
  if (it != run_.train.end() && it->step == step) return it->tokens;
  if (run_.tokens_per_step && step <= kMaxTokens / *run_.tokens_per_step) return step * *run_.tokens_per_step;
  refuse_run(where, fmt::format("the validation of step {} has no \"tokens\", and no train line of that step has them", step),
      "add \"tokens\" to valid lines");
}

}  // namespace octet::report
