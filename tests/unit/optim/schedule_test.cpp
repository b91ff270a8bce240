// Learning-rate schedules against the tables published in docs/reference/schedules.md, and their edges.
#include "optim/schedule.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "core/error.h"
#include "source_dir.h"

using namespace octet;

namespace {

SchedConfig sched(const std::string& type, int64_t warmup, int64_t decay, double ratio) {
  SchedConfig s;
  s.type = type;
  s.warmup_steps = warmup;
  s.decay_steps = decay;
  s.min_lr_ratio = ratio;
  return s;
}

struct Table {
  SchedConfig config;
  int64_t steps = 0;
  std::string heading;
  std::vector<double> rates;
};

// Reads "### TYPE, W = .., D = .., N = .., r = .." headings and the "| s | rate |" rows below them.
std::vector<Table> published_tables() {
  std::ifstream in(octet::test::source_dir() + "/docs/reference/schedules.md");
  std::vector<Table> tables;
  for (std::string line; std::getline(in, line);) {
    char type[16];
    long warmup = 0, decay = 0, steps = 0, step = 0;
    double ratio = 0, rate = 0;
    if (std::sscanf(line.c_str(), "### %15[a-z], W = %ld, D = %ld, N = %ld, r = %lf", type, &warmup, &decay, &steps, &ratio) == 5) {
      tables.push_back({sched(type, warmup, decay, ratio), steps, line, {}});
    } else if (!tables.empty() && std::sscanf(line.c_str(), "| %ld | %lf |", &step, &rate) == 2) {
      EXPECT_EQ(step, static_cast<long>(tables.back().rates.size())) << line << " below " << tables.back().heading;
      tables.back().rates.push_back(rate);
    }
  }
  return tables;
}

TEST(schedule, matches_the_published_tables) {
  std::set<std::string> shapes;
  const std::vector<Table> tables = published_tables();
  for (const Table& t : tables) {
    shapes.insert(t.config.type);
    ASSERT_EQ(static_cast<int64_t>(t.rates.size()), t.steps) << t.heading;
    for (int64_t s = 0; s < t.steps; ++s) {
      EXPECT_NEAR(learning_rate(t.config, 1.0, s, t.steps), t.rates[static_cast<size_t>(s)], 5.1e-7) << t.heading << ", step " << s;
    }
  }
  EXPECT_EQ(shapes, (std::set<std::string>{"constant", "cosine", "linear", "wsd"}));
  EXPECT_GE(tables.size(), 8u);
}

TEST(schedule, linear_reference_values) {
  const double want[] = {.25, .5, .75, 1, 1, 1, 1, .75, .5, .25};
  for (int64_t s = 0; s < 10; ++s) EXPECT_EQ(learning_rate(sched("linear", 4, 4, 0.0), 1.0, s, 10), want[s]) << s;
}

TEST(schedule, scales_with_the_peak_and_never_exceeds_it) {
  for (const char* type : {"constant", "linear", "cosine", "wsd"}) {
    for (int64_t s = 0; s < 50; ++s) {
      const SchedConfig c = sched(type, 5, 20, 0.1);
      const double rate = learning_rate(c, 3e-4, s, 50);
      EXPECT_DOUBLE_EQ(rate, 3e-4 * learning_rate(c, 1.0, s, 50));
      EXPECT_LE(rate, 3e-4);
      EXPECT_GE(rate, s < 5 ? 3e-4 / 5 : 3e-5);
      if (s >= 5) {
        EXPECT_LE(rate, learning_rate(c, 3e-4, s - 1, 50)) << type << " rises at " << s;
      }
    }
  }
}

TEST(schedule, no_warmup_and_no_decay) {
  for (const char* type : {"constant", "linear", "cosine", "wsd"}) {
    for (int64_t s : {0, 1, 9}) EXPECT_EQ(learning_rate(sched(type, 0, 0, 0.0), 1.0, s, 10), 1.0) << type;
  }
  EXPECT_EQ(learning_rate(sched("cosine", 1, 9, 0.0), 1.0, 0, 10), 1.0);  // a warm-up of one step is the full rate
}

TEST(schedule, one_step_beyond_the_last_would_be_the_minimum) {
  for (const char* type : {"linear", "cosine", "wsd"}) EXPECT_NEAR(learning_rate(sched(type, 0, 10, 0.1), 1.0, 10, 10), 0.1, 1e-15) << type;
  EXPECT_NEAR(learning_rate(sched("linear", 0, 10, 0.1), 1.0, 25, 10), 0.1, 1e-15);  // and it stays there
}

TEST(schedule, unresolved_decay_is_an_internal_error) {
  SchedConfig c = sched("linear", 0, 0, 0.1);
  c.decay_steps.reset();
  EXPECT_THROW(learning_rate(c, 1.0, 0, 10), Error);
  c.type = "constant";
  EXPECT_EQ(learning_rate(c, 1.0, 5, 10), 1.0);
  EXPECT_THROW(learning_rate(sched("sine", 0, 5, 0.1), 1.0, 7, 10), Error);
}

}  // namespace
