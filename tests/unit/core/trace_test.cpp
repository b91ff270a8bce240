#include "core/trace.h"

#include <gtest/gtest.h>

#include <map>
#include <sstream>
#include <regex>

namespace octet {
namespace {

struct Event {
  int tid = 0;
  int64_t begin_ns = 0, end_ns = 0;
  std::string args;
};

int64_t nanoseconds(const std::string& micros) {
  const size_t dot = micros.find('.');
  return std::stoll(micros.substr(0, dot)) * 1000 + std::stoll(micros.substr(dot + 1));
}

// The complete events of a trace by name; that it is JSON is tested where a parser is at hand (tests/cli/test_logging.py).
std::multimap<std::string, Event> events_of(const std::string& json) {
  static const std::regex line(R"re(\{"name": "(.*)", "ph": "X", "pid": 3, "tid": (\d+), "ts": ([0-9.]+), "dur": ([0-9.]+)(, "args": (\{.*\}))?\},?)re");
  std::multimap<std::string, Event> out;
  std::istringstream in(json);
  for (std::string text; std::getline(in, text);) {
    std::smatch m;
    if (!std::regex_match(text, m, line)) continue;
    const int64_t begin = nanoseconds(m[3]);
    out.emplace(m[1], Event{std::stoi(m[2]), begin, begin + nanoseconds(m[4]), m[6]});
  }
  return out;
}

TEST(Tracer, SpansNestAndCarryTheirCost) {
  Tracer tracer({}, 3);
  {
    Span outer(&tracer, "step", "7");
    { Span inner(&tracer, "layers.0.attn.qkv", "fprop", {.flops = 2e12, .bytes = 1024}); }
    { Span inner(&tracer, "optimizer", "", {.bytes = 5}); }
  }
  const auto events = events_of(tracer.json());
  ASSERT_EQ(events.size(), 3u) << tracer.json();
  const Event outer = events.find("step 7")->second, gemm = events.find("layers.0.attn.qkv fprop")->second, optimizer = events.find("optimizer")->second;
  EXPECT_LE(outer.begin_ns, gemm.begin_ns);
  EXPECT_LE(gemm.begin_ns, gemm.end_ns);
  EXPECT_LE(gemm.end_ns, optimizer.begin_ns);
  EXPECT_LE(optimizer.end_ns, outer.end_ns);
  EXPECT_EQ(outer.args, "");
  EXPECT_EQ(gemm.args, R"({"flops": 2000000000000, "bytes": 1024})");
  EXPECT_EQ(optimizer.args, R"({"bytes": 5})");
}

TEST(Tracer, ThreadsHaveNumbersInOrderOfAppearance) {
  Tracer tracer({}, 3);
  { Span span(&tracer, "main", ""); }
  std::thread other([&] { Span span(&tracer, "other", ""); });
  other.join();
  const auto events = events_of(tracer.json());
  EXPECT_EQ(events.find("main")->second.tid, 0);
  EXPECT_EQ(events.find("other")->second.tid, 1);
}

TEST(Tracer, HooksSeeEverySpanInItsOrder) {
  std::vector<std::string> calls;
  const TraceHooks hooks{[&](const char* name) { calls.emplace_back(name); }, [&] { calls.emplace_back("pop"); }, {}};
  Tracer tracer(hooks, 0, 1);
  {
    Span outer(&tracer, "a", "forward");
    Span left_out(&tracer, "b", "");  // beyond the trace's size
  }
  EXPECT_EQ(calls, (std::vector<std::string>{"a forward", "b", "pop", "pop"}));
}

TEST(Tracer, SettlesBeforeEveryReadingOfTheClock) {
  // The device "works" for 2 ms whenever somebody waits for it: the outer span has what settled inside it, not before.
  int waits = 0;
  TraceHooks hooks;
  hooks.settle = [&] {
    ++waits;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  };
  Tracer tracer(hooks);
  { Span span(&tracer, "layers.0.mlp", "fprop", {.flops = 5}); }
  EXPECT_EQ(waits, 2);
  ASSERT_EQ(tracer.totals().size(), 1u);
  EXPECT_GE(tracer.totals()[0].ms, 2.0);
}

TEST(Tracer, TotalsAreOwnTimesByNameOverLayers) {
  Tracer tracer;
  const auto work = [] { std::this_thread::sleep_for(std::chrono::milliseconds(3)); };
  {
    Span outer(&tracer, "step", "");
    for (const char* place : {"layers.0.mlp.down", "layers.11.mlp.down", "head"}) {
      Span inner(&tracer, place, "fprop", {.flops = 10, .bytes = 1});
      work();
    }
  }
  const auto totals = tracer.totals();
  ASSERT_EQ(totals.size(), 3u);
  EXPECT_EQ(totals[0].name, "layers.*.mlp.down fprop");
  EXPECT_EQ(totals[0].count, 2);
  EXPECT_EQ(totals[0].cost.flops, 20);
  EXPECT_EQ(totals[0].cost.bytes, 2);
  EXPECT_GE(totals[0].ms, 6.0);
  EXPECT_EQ(totals[1].name, "head fprop");
  EXPECT_EQ(totals[2].name, "step");
  EXPECT_LT(totals[2].ms, 3.0) << "what its inner spans took is not its own";
}

TEST(Tracer, GrowsToItsLimitAndSaysWhatItLeftOut) {
  Tracer tracer({}, 3, 2);
  for (int i = 0; i < 5; ++i) Span span(&tracer, "s", "");
  EXPECT_EQ(tracer.spans(), 2u);
  EXPECT_EQ(tracer.left_out(), 3u);
  EXPECT_EQ(events_of(tracer.json()).size(), 2u);
  EXPECT_NE(tracer.json().find("\"spans_left_out\": 3"), std::string::npos);
}

TEST(Tracer, OpenSpansAreLeftOutAndNamesAreEscaped) {
  Tracer tracer({}, 3);
  Span open(&tracer, "open", "");
  { Span odd(&tracer, "a\"b\\c\n", ""); }
  const auto events = events_of(tracer.json());
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events.begin()->first, "a\\\"b\\\\c\\u000a");
}

TEST(Span, WithoutATracerNothingHappens) {
  Span span(nullptr, "a", "b", {.flops = 1});
  EXPECT_EQ(sizeof(span), 2 * sizeof(void*));  // no string, no clock
}

}  // namespace
}  // namespace octet
