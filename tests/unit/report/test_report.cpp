#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <regex>
#include <set>

#include "fixture.h"
#include "report/compare_output.h"
#include "report/html.h"
#include "report/page_assets.h"
#include "report/svg.h"

namespace octet::report {
namespace {

using namespace octet::test;

const char* const kHostile = "<script>alert('x')</script>&\"\x1b[31m";

Comparison example(bool twin = true) {
  CompareInput input;
  const auto add = [&](std::vector<RunMetrics>& to, const std::string& recipe, uint64_t seed, double gap) {
    RunShape s;
    s.recipe = recipe;
    s.name = recipe + "-" + std::to_string(seed);
    s.seed = seed;
    s.gap_percent = gap;
    to.push_back(make_run(s));
    to.back().config = {{"precision", {{"recipe", recipe}}}};
    to.back().quantized = {{"x.e4m3", recipe == "bf16" ? 0.0 : 5e6}};
  };
  for (uint64_t seed : {1u, 2u}) {
    const double d = seed == 1 ? -0.001 : 0.001;
    add(input.runs, "bf16", seed, 0);
    add(input.runs, "blockwise", seed, 0.03 + d);
    add(input.runs, kHostile, seed, 3 + d);
    add(input.runs, "delayed", seed, 0.2 + 100 * d);
  }
  add(input.runs, "rowwise", 1, 0.1);
  if (twin) add(input.twins, "bf16", 2, 0.02);
  CompareOptions options;
  options.max_gap_percent = 0.4;
  return compare(input, options);
}

size_t occurrences(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

// Without the contents of scripts and styles.
std::string markup_of(std::string text) {
  for (const std::string name : {"script", "style"}) {
    for (size_t at = text.find("<" + name); at != std::string::npos; at = text.find("<" + name, at + 1)) {
      const size_t begin = text.find('>', at) + 1;
      text.erase(begin, text.find("</" + name + ">", begin) - begin);
    }
  }
  return text;
}

// Every element is closed in order; void elements of HTML aside.
void expect_balanced(const std::string& text) {
  std::vector<std::string> open;
  const std::string body = markup_of(text);
  for (size_t at = body.find('<'); at != std::string::npos; at = body.find('<', at + 1)) {
    if (body[at + 1] == '!' || body[at + 1] == '?') continue;
    size_t end = at;
    for (bool quoted = false; body[end] != '>' || quoted; ++end) {
      ASSERT_LT(end, body.size() - 1);
      if (body[end] == '"') quoted = !quoted;
    }
    const bool closing = body[at + 1] == '/';
    const size_t first = at + (closing ? 2 : 1);
    const std::string name = body.substr(first, std::min(body.find_first_of(" />\n", first), end) - first);
    if (name == "meta" || name == "input" || body[end - 1] == '/') continue;
    if (!closing) {
      open.push_back(name);
    } else {
      ASSERT_FALSE(open.empty()) << name;
      ASSERT_EQ(open.back(), name);
      open.pop_back();
    }
  }
  EXPECT_TRUE(open.empty()) << open.back();
}

TEST(Text, TableAndSentences) {
  const std::string text = to_text(example());
  EXPECT_NE(text.find("bf16 (baseline)"), std::string::npos);
  EXPECT_NE(text.find("blockwise: pass -- final loss +0.030 % vs bf16 (95 % interval +0.017 to +0.043 %, 2 seeds)"), std::string::npos) << text;
  EXPECT_NE(text.find("delayed: inconclusive -- final loss +0.200 % vs bf16"), std::string::npos) << text;
  EXPECT_NE(text.find(" more seeds"), std::string::npos);
  EXPECT_NE(text.find("rowwise: one pair -- final loss +0.100 % vs bf16; one seed has no interval"), std::string::npos) << text;
  EXPECT_NE(text.find(": fail -- final loss +3.000 % vs bf16"), std::string::npos) << text;
  EXPECT_NE(text.find("--max-gap 0.4: yes"), std::string::npos);
  EXPECT_NE(text.find("--max-gap 0.4: no"), std::string::npos);
  EXPECT_NE(text.find("1 twin (the baseline from slightly perturbed weights): validation loss differs by 0.020 %"), std::string::npos) << text;
  EXPECT_TRUE(std::regex_search(text, std::regex("\nblockwise +x.e4m3 +10.0M\n"))) << text;
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
}

TEST(Text, ADivergedRunAndTheTrainingMeasureAreNamed) {
  RunShape base, dead;
  dead.recipe = dead.name = "dead";
  base.valid_every = dead.valid_every = 0;
  dead.extra_percent = [](int64_t step) { return step > 100 ? NAN : 0.0; };
  CompareInput input;
  input.runs = {make_run(base), make_run(dead)};
  const Comparison c = compare(input, {});
  const std::string text = to_text(c);
  EXPECT_NE(text.find("dead: fail -- final loss is not a finite number; last 100 steps had non-finite values"), std::string::npos) << text;
  EXPECT_NE(method_notes(c)[0].find("mean training loss of the last 40 steps"), std::string::npos);
  const auto json = to_json(c)["groups"][0];
  EXPECT_TRUE(json["gap_percent"].is_null());
  EXPECT_EQ(json["diverged"], true);
  EXPECT_EQ(json["non_finite_steps"], 100);
  EXPECT_EQ(json["measure"], "smoothed training loss");
  EXPECT_NE(to_html(c).find("final loss is not a finite number"), std::string::npos);
}

TEST(Text, ARunThatEndedEarlyFailsInTableJsonAndHtml) {
  RunShape base, early;
  early.recipe = early.name = "early";
  early.steps = 120;
  CompareInput input;
  input.runs = {make_run(base), make_run(early)};
  CompareOptions options;
  options.max_gap_percent = 100;
  const Comparison c = compare(input, options);
  const std::string reason = "ended at 122880 of 204800 tokens", text = to_text(c), html = to_html(c);
  EXPECT_TRUE(std::regex_search(text, std::regex("\nearly +1 +[0-9.]+ +- +- +fail: " + reason))) << text;
  EXPECT_NE(text.find("early: fail -- " + reason + "; --max-gap 100: no"), std::string::npos) << text;
  EXPECT_NE(html.find("<td class=\"fail\">fail: " + reason + "</td>"), std::string::npos);
  EXPECT_NE(html.find("<td>" + reason + "</td>"), std::string::npos);  // among the pairs
  expect_balanced(html);
  const auto json = to_json(c);
  EXPECT_EQ(json["within_max_gap"], false);
  const auto& g = json["groups"][0];
  EXPECT_EQ(g["verdict"], "fail");
  EXPECT_EQ(g["failure"], reason);
  EXPECT_EQ(g["pairs"][0]["failure"], reason);
  EXPECT_EQ(g["diverged"], false);
  EXPECT_EQ(g["within_max_gap"], false);
  EXPECT_TRUE(g["gap_percent"].is_null());
}

TEST(Json, HasEveryNumberOfTheTable) {
  const auto json = nlohmann::json::parse(to_json(example()).dump());
  EXPECT_EQ(json["baseline"]["label"], "bf16");
  EXPECT_EQ(json["baseline"]["runs"], (nlohmann::json{"bf16-1", "bf16-2"}));
  EXPECT_EQ(json["within_max_gap"], false);
  ASSERT_EQ(json["groups"].size(), 4u);
  const auto& g = json["groups"][0];
  EXPECT_EQ(g["label"], "blockwise");
  EXPECT_EQ(g["verdict"], "pass");
  EXPECT_NEAR(g["gap_percent"].get<double>(), 0.03, 1e-9);
  EXPECT_NEAR(g["upper_percent"].get<double>(), 0.03 + 12.7062 * 0.001, 1e-6);
  EXPECT_NEAR(g["lower_percent"].get<double>(), 0.03 - 12.7062 * 0.001, 1e-6);
  EXPECT_NEAR(g["grad_norm_ratio"].get<double>(), 1, 1e-9);
  EXPECT_NEAR(g["throughput_ratio"].get<double>(), 1, 1e-9);
  EXPECT_EQ(g["within_max_gap"], true);
  EXPECT_TRUE(g["first_divergence"].is_null());
  EXPECT_TRUE(g["failure"].is_null());
  EXPECT_EQ(g["skipped_steps"], 0);
  EXPECT_EQ(g["quantized"]["x.e4m3"], 1e7);
  ASSERT_EQ(g["pairs"].size(), 2u);
  EXPECT_EQ(g["pairs"][1]["seed"], 2);
  EXPECT_EQ(g["pairs"][1]["tokens"], 204800);
  EXPECT_NEAR(g["pairs"][1]["gap_percent"].get<double>(), 0.031, 1e-9);
  EXPECT_EQ(json["groups"][1]["first_divergence"]["step"], 1);
  EXPECT_GT(json["groups"][2]["more_seeds"].get<int>(), 0);
  EXPECT_TRUE(json["groups"][3]["upper_percent"].is_null());
  EXPECT_NEAR(json["twins"]["max_gap_percent"].get<double>(), 0.02, 1e-9);
  EXPECT_TRUE(to_json(example(false))["twins"].is_null());
}

TEST(Html, IsSelfContainedEscapedAndBalanced) {
  const std::string html = to_html(example());
  EXPECT_EQ(html.find("alert('x')</script>"), std::string::npos);
  EXPECT_NE(html.find("&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&amp;&quot;"), std::string::npos);
  EXPECT_EQ(html.find('\x1b'), std::string::npos);
  EXPECT_EQ(occurrences(html, "<script"), 2u);  // the data and the page's own
  EXPECT_EQ(occurrences(html, "</script"), 2u);
  EXPECT_EQ(occurrences(html, "href="), occurrences(html, "href=\"#"));
  for (const char* outside : {"src=", "@import", "url(http", "fetch(", "innerHTML"})
    EXPECT_EQ(html.find(outside), std::string::npos) << outside;
  EXPECT_EQ(occurrences(html, "http"), occurrences(html, "http://www.w3.org/2000/svg") + occurrences(html, "http-equiv"));
  expect_balanced(html);
}

TEST(Html, SaysTheVerdictsFirstAndDrawsAllCurves) {
  const std::string html = to_html(example());
  EXPECT_LT(html.find("blockwise: pass -- final loss +0.030 % vs bf16"), html.find("<table>"));
  EXPECT_EQ(occurrences(html, "<figure "), 6u);  // the gaps at a glance and five charts
  for (const char* part : {"color-scheme: light dark", "<caption", "scope=\"row\"", "forest-title", "class=\"interval s1 d0\"", "Last values: bf16 ", "role=\"img\"", "<desc id=\"loss-desc\">", "training tokens",
                           "Elements quantized", "Config differences", "precision.recipe", ">Method</h2>", "margin +0.25 %", "Skipped steps and events",
                           "Verdict: 1 pass, 1 fail, 1 inconclusive, 1 single pair without a verdict"}) {
    EXPECT_NE(html.find(part), std::string::npos) << part;
  }
  EXPECT_EQ(occurrences(html, "<li><span class=\"key\">"), 5u);
  for (int i = 0; i < 5; ++i) EXPECT_GE(occurrences(html, fmt::format("data-series=\"{}\"", i)), 3u) << i;
}

// The policy lets exactly the page's own script run: its hash is that of the bytes between the tags.
TEST(Html, ThePolicyNamesTheScript) {
  const std::string html = to_html(example());
  const size_t begin = html.rfind("<script>") + 8;
  EXPECT_EQ(html.substr(begin, html.rfind("</script>") - begin), page::script);
  const std::regex policy("script-src 'sha256-[A-Za-z0-9+/]{43}='; base-uri 'none'");
  EXPECT_TRUE(std::regex_search(html.substr(0, 1000), policy));
  EXPECT_EQ(page::script_sha256.size(), 64u);
}

TEST(Html, EventsSpeedsAndConfigsAreTables) {
  CompareInput input;
  RunShape shape;
  input.runs = {make_run(shape), make_run(shape)};
  RunMetrics& run = input.runs[1];
  run.name = run.recipe = "delayed";
  run.train[99].skipped = run.train[99].non_finite = true;
  run.train[49].non_finite = true;
  run.events.push_back({100, "nonfinite", "tensor <b>head</b>"});
  run.further_events = 7;
  input.runs[0].config = {{"optim", {{"lr", 1}}}, {"same", 1}};
  run.config = {{"optim", {{"lr", 2}}}, {"same", 1}, {"extra", "x"}};
  const std::string html = to_html(compare(input, {}));
  EXPECT_NE(html.find("<td>100</td><td class=\"left\">nonfinite (step skipped)</td><td class=\"left text\">tensor &lt;b&gt;head&lt;/b&gt;</td>"), std::string::npos);
  EXPECT_NE(html.find("<td>50</td><td class=\"left\">non-finite values</td>"), std::string::npos);
  EXPECT_NE(html.find("7 further events"), std::string::npos);
  EXPECT_NE(html.find("<th scope=\"row\">optim.lr</th><td class=\"left value\">1</td><td class=\"left value differs\">2</td>"), std::string::npos);
  EXPECT_NE(html.find("<th scope=\"row\">extra</th><td class=\"left value\">absent</td>"), std::string::npos);
  EXPECT_EQ(html.find("<th scope=\"row\">same</th>"), std::string::npos);
  EXPECT_NE(html.find(">to baseline</th>"), std::string::npos);
  expect_balanced(html);
}

TEST(Svg, StandsAlone) {
  const std::string svg = standalone_svg(example());
  EXPECT_TRUE(svg.starts_with("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\""));
  EXPECT_EQ(occurrences(svg, "<script"), 0u);
  EXPECT_NE(svg.find("bf16 (baseline)"), std::string::npos);
  EXPECT_NE(svg.find("class=\"band\""), std::string::npos);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("inf"), std::string::npos);
  expect_balanced(svg.substr(svg.find("<svg")));
}

TEST(Svg, ALineBreaksWhereAValueIsMissing) {
  Chart chart;
  chart.id = "c";
  chart.lines.push_back({"a", 1, {{0, 1, 2, 3, 4}, {1, 2, NAN, 3, 4}}, false});
  const std::string svg = chart_svg(chart);
  const std::string path = svg.substr(svg.find("<path d=\"") + 9);
  const std::string d = path.substr(0, path.find('"'));
  EXPECT_EQ(std::count(d.begin(), d.end(), 'M'), 2);
  EXPECT_EQ(std::count(d.begin(), d.end(), 'L'), 2);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
}

TEST(Svg, ChartsOfNothingOrOnePointHaveFiniteCoordinates) {
  for (const Curve& curve : {Curve{}, Curve{{5}, {2}}, Curve{{5, 6}, {2, 2}}, Curve{{0, 1}, {NAN, NAN}}, Curve{{0, 1}, {-1e300, 1e300}}}) {
    for (bool robust : {false, true}) {
      Chart chart;
      chart.lines.push_back({"a", 3, curve, false});
      chart.robust_range = robust;
      const std::string svg = chart_svg(chart);
      EXPECT_EQ(svg.find("nan"), std::string::npos) << svg;
      EXPECT_EQ(svg.find("inf"), std::string::npos) << svg;
    }
  }
}

TEST(Svg, NiceTicks) {
  EXPECT_EQ(nice_ticks(0, 10, 5), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ(nice_ticks(0.9, 5.1, 5), (std::vector<double>{1, 2, 3, 4, 5}));
  const auto small = nice_ticks(-0.1, 0.1, 4);
  ASSERT_EQ(small.size(), 5u);
  EXPECT_NEAR(small[0], -0.1, 1e-15);
  EXPECT_EQ(small[2], 0);
  for (int count = 1; count < 12; ++count) {
    const auto ticks = nice_ticks(3.3, 777.7, count);
    EXPECT_LE(ticks.size(), static_cast<size_t>(count) + 1);
    for (double t : ticks) EXPECT_TRUE(t >= 3.3 && t <= 777.7) << t;
  }
  EXPECT_TRUE(nice_ticks(1, 1, 5).empty());
  EXPECT_TRUE(nice_ticks(0, INFINITY, 5).empty());
}

TEST(Svg, EscapesEverythingThatCouldEndAnAttribute) {
  EXPECT_EQ(escape_markup("a<b>&\"'\x01\xff"), "a&lt;b&gt;&amp;&quot;&#39;??");
  EXPECT_EQ(escape_markup("\xC3\xA9"), "\xC3\xA9");
}

TEST(Svg, SeriesDifferInColourOrDash) {
  std::set<std::string> seen;
  for (size_t i = 0; i <= 40; ++i) EXPECT_TRUE(seen.insert(series_classes(i)).second) << i;
}

}  // namespace
}  // namespace octet::report
