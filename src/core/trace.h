// Tracer: what a step spends its time on, as spans on one clock; written as a Chrome trace (chrome://tracing, https://ui.perfetto.dev).
//
//   Span span(ctx.tracer, "layers.0.attn.qkv", "fprop", {.flops = 2.0 * t * n * k});
//
// Without a tracer a span is one comparison with null. With one it costs about 0.4 microseconds and memory for its name; the
// trace stops growing at a million spans, and says how many it left out. Spans of a thread nest; any thread may open them. Work in the
// thread pool is inside the span of the thread that waits for it. Event format: "Trace Event Format" (Google, 2016), complete events.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace octet {

// Called with each span; set by the program (cuda/nvtx.h), so that core knows no profiler. push and pop: both empty, or neither.
struct TraceHooks {
  std::function<void(const char* name)> push;
  std::function<void()> pop;
  std::function<void()> settle;   // waits until a device has done what it was given: then spans are the device's times, and traced steps some percent slower
};

// What the work of a span amounts to; 0: not known.
struct TraceCost {
  double flops = 0;   // multiply-adds count twice; recomputation counts where it happens
  double bytes = 0;   // tensor elements read and written
};

class Tracer {
 public:
  explicit Tracer(TraceHooks hooks = {}, int rank = 0, size_t max_spans = size_t{1} << 20);

  // Opens a span named "PLACE PHASE" (phase may be empty) and returns its number for end().
  size_t begin(std::string_view place, std::string_view phase, TraceCost cost);
  void end(size_t span);

  size_t spans() const { return events_.size(); }
  size_t left_out() const { return left_out_; }
  // Time spent in spans themselves, without what their inner spans took, added up over spans of one name; layer numbers in names become *. Longest first.
  struct Total {
    std::string name;
    double ms = 0;
    int64_t count = 0;
    TraceCost cost;
  };
  std::vector<Total> totals() const;
  // The trace as JSON: {"traceEvents": [...]}; ts and dur in microseconds since the tracer was made, pid = rank, tid = thread in order of
  // appearance. Spans still open are left out. Not while other threads open or close spans.
  std::string json() const;

 private:
  struct Event {
    std::string name;
    TraceCost cost;
    int64_t begin_ns = 0, end_ns = -1;
    int thread = 0;
  };
  int thread_number();

  TraceHooks hooks_;
  int rank_;
  size_t max_spans_, left_out_ = 0;
  int64_t zero_ns_;
  std::mutex mutex_;
  std::vector<Event> events_;
  std::vector<std::thread::id> threads_;
};

class Span {
 public:
  Span(Tracer* tracer, std::string_view place, std::string_view phase, TraceCost cost = {}) : tracer_(tracer) {
    if (tracer_) number_ = tracer_->begin(place, phase, cost);
  }
  ~Span() {
    if (tracer_) tracer_->end(number_);
  }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  Tracer* tracer_;
  size_t number_ = 0;
};

}  // namespace octet
