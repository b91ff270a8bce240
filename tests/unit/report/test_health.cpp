// FP8 statistics of metrics.jsonl, pooling of curves and statistics, and what the page's script gets.
#include <cmath>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <limits>

#include "core/error.h"
#include "fixture.h"
#include "report/curves.h"
#include "report/report_data.h"
#include "report/run_series.h"

namespace octet::report {
namespace {

using namespace octet::test;
using nlohmann::json;

json sites(const std::vector<std::string>& names) {
  json list = json::array();
  for (const auto& name : names) list.push_back({{"name", name}, {"module", "m"}, {"tensor", "x"}, {"role", "x"}, {"image", "row"}, {"format", "e4m3"}});
  return {{"kind", "event"}, {"event", "stats_sites"}, {"sites", list}};
}

json stats(int64_t step, const json& underflow) { return {{"kind", "stats"}, {"step", step}, {"underflow", underflow}}; }

std::string line_failure(const json& line, bool with_sites = true) {
  Health health;
  if (with_sites) health.add_sites(sites({"a", "b"}), "f:1");
  try {
    line.contains("sites") ? health.add_sites(line, "f:2") : health.add_stats(line, "f:2");
  } catch (const Error& error) {
    EXPECT_EQ(error.code, ExitCode::data);
    return error.what();
  }
  return {};
}

TEST(Health, ValuesFollowTheLatestSites) {
  Health health;
  health.add_sites(sites({"a", "b"}), "f:1");
  health.add_stats(stats(10, {0.25, nullptr}), "f:2");
  health.add_sites(sites({"b", "c"}), "f:3");
  health.add_stats(stats(20, {0.5, 1e300}), "f:4");
  ASSERT_EQ(health.sites().size(), 3u);
  ASSERT_EQ(health.columns().size(), 2u);
  const auto value = [&](size_t column, size_t site) { return health.value(health.columns()[column], site, HealthMetric::underflow); };
  EXPECT_EQ(value(0, 0), 0.25f);
  EXPECT_TRUE(std::isnan(value(0, 1)));
  EXPECT_TRUE(std::isnan(value(0, 2)));
  EXPECT_TRUE(std::isnan(value(1, 0)));
  EXPECT_EQ(value(1, 1), 0.5f);
  EXPECT_EQ(value(1, 2), std::numeric_limits<float>::max());
  EXPECT_TRUE(std::isnan(health.value(health.columns()[0], 0, HealthMetric::amax)));
}

TEST(Health, MalformedLinesAreRefused) {
  EXPECT_NE(line_failure(stats(1, {1, 2}), false).find("f:2: a stats line without"), std::string::npos);
  EXPECT_NE(line_failure(stats(1, json::array({1}))).find("\"underflow\" is not an array of 2 values"), std::string::npos);
  EXPECT_NE(line_failure(stats(1, {1, "x"})).find("something else than numbers"), std::string::npos);
  EXPECT_NE(line_failure(stats(-1, {1, 2})).find("\"step\""), std::string::npos);
  EXPECT_NE(line_failure(sites({"a", "a"})).find("listed twice"), std::string::npos);
  EXPECT_NE(line_failure(json::parse(R"({"sites":[{"name":1}]})")).find("no text \"name\""), std::string::npos);
  EXPECT_NE(line_failure(json::parse(R"({"sites":3})")).find("no array"), std::string::npos);
}

TEST(Health, AResumeDropsTheEarlierLifeFromThereOn) {
  Health health;
  health.add_sites(sites({"a"}), "f");
  for (int64_t step = 1; step <= 6; ++step) {
    if (step % 2 == 0) health.add_stats(stats(step, json::array({1})), "f");
    health.train_line(step, false);
  }
  health.add_stats(stats(4, json::array({2})), "f");  // before the train line of its step, as it may be
  health.train_line(4, true);
  ASSERT_EQ(health.columns().size(), 2u);
  EXPECT_EQ(health.columns()[1].step, 4);
  EXPECT_EQ(health.value(health.columns()[1], 0, HealthMetric::underflow), 2);
  health.train_line(3, true);
  EXPECT_EQ(health.columns().size(), 1u);
}

TEST(Health, IsReadFromARun) {
  TempDir dir;
  const auto run = write_run(dir.path(), {});
  write_text(run / "metrics.jsonl", read_text(run / "metrics.jsonl") + sites({"a"}).dump() + "\n" + stats(100, json::array({0.5})).dump() + "\n" +
                                        R"({"kind":"event","event":"rollback","step":7,"to":5})" + "\n");
  const RunMetrics metrics = read_run(run);
  EXPECT_EQ(metrics.health.columns().size(), 1u);
  ASSERT_EQ(metrics.events.size(), 1u);
  EXPECT_EQ(metrics.events[0].step, 7);
  EXPECT_EQ(metrics.events[0].name, "rollback");
  EXPECT_EQ(metrics.events[0].detail, "to 5");
}

TEST(Health, PoolingKeepsTheWorst) {
  Health health;
  health.add_sites(sites({"a", "b", "c"}), "f");
  for (int64_t step = 1; step <= 100; ++step) {
    health.add_stats({{"step", step}, {"underflow", {0.001, step == 37 ? 0.9 : 0.01, 0}}, {"sqnr_db", {30, step == 38 ? 3.0 : 30.0, nullptr}}, {"nonfinite", {0, 0, 0}}}, "f");
  }
  const PooledHealth pooled = pool(health, 10, 2);
  EXPECT_EQ(pooled.sites, (std::vector<size_t>{0, 1}));
  EXPECT_EQ(pooled.first_step[3], 31);
  EXPECT_EQ(pooled.last_step[3], 40);
  EXPECT_EQ(pooled.values[0][1][3], 0.9f);
  EXPECT_EQ(pooled.values[2][1][3], 3.0f);
  EXPECT_EQ(pooled.values[0][1][4], 0.01f);
  const HealthExtremes e = extremes(health, 1);
  EXPECT_FLOAT_EQ(static_cast<float>(e.underflow), 0.9f);
  EXPECT_EQ(e.sqnr_db, 3);
  EXPECT_TRUE(std::isnan(e.amax));
  EXPECT_EQ(pool(health, 1000, 10).first_step.size(), 100u);
}

TEST(RunSeries, PoolingKeepsMeansAndExtremes) {
  RunShape shape;
  shape.steps = 1000;
  RunMetrics run = make_run(shape);
  run.train[555].loss = 99;
  run.train[556].loss = NAN;
  const RunSeries s = pool(run, 100);
  EXPECT_TRUE(s.pooled());
  ASSERT_EQ(s.step.size(), 100u);
  EXPECT_EQ(s.step.back(), 1000);
  EXPECT_EQ(s.lines[55], 10);
  EXPECT_EQ(s.loss.high[55], 99);
  double sum = 0, low = 99;
  for (size_t i = 550; i < 560; ++i) {
    if (i == 556) continue;
    sum += run.train[i].loss;
    low = std::min(low, run.train[i].loss);
  }
  EXPECT_DOUBLE_EQ(s.loss.mean[55], sum / 9);
  EXPECT_EQ(s.loss.low[55], low);
  const RunSeries whole = pool(run, 1000);
  EXPECT_FALSE(whole.pooled());
  EXPECT_TRUE(std::isnan(whole.loss.mean[556]));
}

TEST(Curves, MeanIntervalIsStudents) {
  const std::vector<double> x{1, 2};
  const CurveBand band = mean_interval({{x, {1, 1}}, {x, {3, NAN}}}, x);
  EXPECT_NEAR(band.upper.y[0], 2 + 12.7062, 1e-3);  // t(0.975, 1) * s / sqrt(2), s = sqrt(2)
  EXPECT_NEAR(band.lower.y[0], 2 - 12.7062, 1e-3);
  EXPECT_TRUE(std::isnan(band.upper.y[1]));
  EXPECT_TRUE(mean_interval({{x, {1, 1}}}, x).upper.empty());
}

TEST(Curves, AStepLostByOneRunIsLeftOutOfBoth) {
  RunShape shape;
  shape.noise = 0;
  const RunMetrics baseline = make_run(shape);
  shape.gap_percent = 1;
  RunMetrics run = make_run(shape);
  run.train[29].loss = run.train[30].loss = NAN;
  const Curve gap = smoothed_gap_percent(run, baseline);
  ASSERT_EQ(gap.y.size(), 200u);
  for (const double y : gap.y) EXPECT_NEAR(y, 1, 1e-9);
}

TEST(Curves, AShorterRunIsSmoothedOverAsManyTokens) {
  RunShape shape;
  shape.noise = 0;
  const RunMetrics baseline = make_run(shape);
  RunMetrics run = baseline;
  run.train.resize(60);                                   // of 200, otherwise the same
  const Curve gap = smoothed_gap_percent(run, baseline);
  ASSERT_EQ(gap.y.size(), 60u);
  for (const double y : gap.y) EXPECT_NEAR(y, 0, 1e-12);
}

TEST(PageData, IsSafeInsideAScriptAndWhole) {
  CompareInput input;
  RunShape shape;
  input.runs = {make_run(shape), make_run(shape)};
  input.runs[1].name = input.runs[1].recipe = "</script><!-- & \xE2\x80\xA8 \xff";
  input.runs[1].train[9].loss = NAN;
  input.runs[1].train[9].non_finite = true;
  input.runs[1].health.add_sites(sites({"<b>"}), "f");
  input.runs[1].health.add_stats(stats(5, json::array({0.5})), "f");
  const std::string text = page_data(compare(input, {}));
  for (const char c : {'<', '>', '&'}) EXPECT_EQ(text.find(c), std::string::npos);
  for (const char c : text) EXPECT_TRUE(c >= 0x20 && c < 0x7f);
  const json data = json::parse(text);
  EXPECT_EQ(data["runs"].size(), 2u);
  EXPECT_TRUE(data["runs"][1]["name"].get<std::string>().starts_with("</script><!-- & "));
  EXPECT_EQ(data["runs"][1]["loss"]["mean"].size(), 200u);
  EXPECT_TRUE(data["runs"][1]["loss"]["mean"][9].is_null());
  EXPECT_EQ(data["runs"][1]["bad"], json::parse("[10]"));
  EXPECT_TRUE(data["runs"][1]["lines"].is_null());
  EXPECT_EQ(data["runs"][0]["tokens"][199], 204800);
  EXPECT_EQ(data["health"][0]["run"], 1);
  EXPECT_EQ(data["health"][0]["sites"][0]["name"], "<b>");
  EXPECT_EQ(data["health"][0]["underflow"], json::parse("[[0.5]]"));
  EXPECT_EQ(data["groups"][1]["gap"]["mean"].size(), 200u);
  EXPECT_FALSE(data["groups"][1]["gap"].contains("lower"));
}

}  // namespace
}  // namespace octet::report
