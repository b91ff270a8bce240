#include "core/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <map>
#include <utility>

namespace octet {
namespace {

int64_t now_ns() { return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

std::string quoted_text(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out + '"';
}

// Nanoseconds as microseconds, without rounding: nesting survives.
std::string micros(int64_t ns) { return fmt::format("{}.{:03d}", ns / 1000, ns % 1000); }

}  // namespace

Tracer::Tracer(TraceHooks hooks, int rank, size_t max_spans) : hooks_(std::move(hooks)), rank_(rank), max_spans_(max_spans), zero_ns_(now_ns()) {}

int Tracer::thread_number() {
  const auto at = std::find(threads_.begin(), threads_.end(), std::this_thread::get_id());
  const auto number = static_cast<int>(at - threads_.begin());
  if (at == threads_.end()) threads_.push_back(std::this_thread::get_id());
  return number;
}

size_t Tracer::begin(std::string_view place, std::string_view phase, TraceCost cost) {
  if (hooks_.settle) hooks_.settle();
  std::string name(place);
  if (!phase.empty()) name.append(" ").append(phase);
  if (hooks_.push) hooks_.push(name.c_str());
  const std::lock_guard lock(mutex_);
  if (events_.size() >= max_spans_) {
    ++left_out_;
    return max_spans_;
  }
  Event& e = events_.emplace_back(Event{std::move(name), cost, 0, -1, thread_number()});
  e.begin_ns = now_ns();  // last, so that the span does not measure itself
  return events_.size() - 1;
}

void Tracer::end(size_t span) {
  if (hooks_.settle) {
    try {
      hooks_.settle();
    } catch (...) {   // from a destructor nothing may be thrown; the device reports its fault again at the next call
    }
  }
  const int64_t ended = now_ns();
  if (span < max_spans_) {
    const std::lock_guard lock(mutex_);
    events_[span].end_ns = ended;
  }
  if (hooks_.pop) hooks_.pop();
}

std::vector<Tracer::Total> Tracer::totals() const {
  // Events are in the order of their begin; of one thread, the innermost open one is the parent.
  std::vector<int64_t> own(events_.size());
  std::map<int, std::vector<size_t>> open;
  for (size_t i = 0; i < events_.size(); ++i) {
    const Event& e = events_[i];
    if (e.end_ns < 0) continue;
    own[i] += e.end_ns - e.begin_ns;
    auto& stack = open[e.thread];
    while (!stack.empty() && events_[stack.back()].end_ns <= e.begin_ns) stack.pop_back();
    if (!stack.empty()) own[stack.back()] -= e.end_ns - e.begin_ns;
    stack.push_back(i);
  }
  std::map<std::string, Total> by_name;
  for (size_t i = 0; i < events_.size(); ++i) {
    const Event& e = events_[i];
    if (e.end_ns < 0) continue;
    std::string name = e.name;
    if (constexpr std::string_view layers = "layers."; name.starts_with(layers)) {
      const size_t digits = name.find_first_not_of("0123456789", layers.size());
      name.replace(layers.size(), std::min(digits, name.size()) - layers.size(), "*");
    }
    Total& t = by_name[name];
    t.name = name;
    t.ms += static_cast<double>(own[i]) * 1e-6;
    ++t.count;
    t.cost.flops += e.cost.flops;
    t.cost.bytes += e.cost.bytes;
  }
  std::vector<Total> out;
  for (auto& [name, total] : by_name) out.push_back(std::move(total));
  std::sort(out.begin(), out.end(), [](const Total& a, const Total& b) { return a.ms > b.ms; });
  return out;
}

std::string Tracer::json() const {
  std::string out = "{\"displayTimeUnit\": \"ms\",\n";
  const auto at = std::back_inserter(out);
  if (left_out_ > 0) fmt::format_to(at, "\"otherData\": {{\"spans_left_out\": {}}},\n", left_out_);
  fmt::format_to(at, "\"traceEvents\": [\n{{\"name\": \"process_name\", \"ph\": \"M\", \"pid\": {0}, \"tid\": 0, \"args\": {{\"name\": \"octet rank {0}\"}}}}", rank_);
  for (size_t t = 0; t < threads_.size(); ++t) {
    fmt::format_to(at, ",\n{{\"name\": \"thread_name\", \"ph\": \"M\", \"pid\": {}, \"tid\": {}, \"args\": {{\"name\": \"{} {}\"}}}}", rank_, t, t == 0 ? "training thread" : "thread", t);
  }
  for (const Event& e : events_) {
    if (e.end_ns < 0) continue;
    fmt::format_to(at, ",\n{{\"name\": {}, \"ph\": \"X\", \"pid\": {}, \"tid\": {}, \"ts\": {}, \"dur\": {}", quoted_text(e.name), rank_, e.thread,
                   micros(e.begin_ns - zero_ns_), micros(e.end_ns - e.begin_ns));
    if (e.cost.flops > 0 || e.cost.bytes > 0) {
      out += ", \"args\": {";
      if (e.cost.flops > 0) fmt::format_to(at, "\"flops\": {:.0f}{}", e.cost.flops, e.cost.bytes > 0 ? ", " : "");
      if (e.cost.bytes > 0) fmt::format_to(at, "\"bytes\": {:.0f}", e.cost.bytes);
      out += "}";
    }
    out += "}";
  }
  return out + "\n]}\n";
}

}  // namespace octet
