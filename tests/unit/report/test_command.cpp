// The command from its words to its exit code.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sstream>

#include "app/compare.h"
#include "fixture.h"

namespace octet {
namespace {

using namespace octet::test;
using report::CompareRequest;
using report::run_comparison;

CompareRequest parse(std::vector<std::string> words) {
  words.insert(words.begin(), "compare");
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  return parse_compare(static_cast<int>(words.size()), argv.data()).value();
}

std::string error_of(const std::vector<std::string>& words, ExitCode code) {
  try {
    parse(words);
  } catch (const Error& error) {
    EXPECT_EQ(error.code, code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "parsed";
  return {};
}

// The exit code of a comparison, of its errors too.
ExitCode command_code(const CompareRequest& request) {
  std::ostringstream out;
  try {
    return run_comparison(request, out);
  } catch (const Error& error) {
    EXPECT_EQ(out.str(), "");
    return error.code;
  }
}

struct Runs {
  TempDir dir;
  std::filesystem::path bf16, good, bad;
  Runs() {
    RunShape shape;
    bf16 = write_run(dir.path(), shape);
    shape.name = shape.recipe = "good";
    shape.gap_percent = -0.2;
    good = write_run(dir.path(), shape);
    shape.name = shape.recipe = "bad";
    shape.gap_percent = 3;
    bad = write_run(dir.path(), shape);
  }
};

TEST(CompareWords, AllOptionsInAnyOrder) {
  const CompareRequest r = parse(
      {"a", "--baseline", "b,1", "--baseline=b2", "c,d", "--twin", "t", "--out", "r.html", "--json=r.json", "--svg", "r.svg", "--margin", "0.5"});
  EXPECT_EQ(r.runs, (std::vector<std::filesystem::path>{"a", "c,d"}));
  EXPECT_EQ(r.baselines, (std::vector<std::filesystem::path>{"b,1", "b2"}));
  EXPECT_EQ(r.twins, (std::vector<std::filesystem::path>{"t"}));
  EXPECT_EQ(r.html, "r.html");
  EXPECT_EQ(r.json, "r.json");
  EXPECT_EQ(r.svg, "r.svg");
  EXPECT_EQ(r.options.margin_percent, 0.5);
  EXPECT_FALSE(r.options.max_gap_percent);
  EXPECT_EQ(parse({"a"}).options.margin_percent, 0.25);
}

TEST(CompareWords, MaxGapMayBeNegative) {
  EXPECT_EQ(parse({"a", "--max-gap", "-0.1"}).options.max_gap_percent, -0.1);
  EXPECT_EQ(parse({"a", "--max-gap=-0.1"}).options.max_gap_percent, -0.1);
  EXPECT_EQ(parse({"--max-gap", "-0.1", "a", "b"}).runs.size(), 2u);
  EXPECT_EQ(parse({"a", "--max-gap", "+0.4"}).options.max_gap_percent, 0.4);
  EXPECT_EQ(parse({"a", "--max-gap", "0"}).options.max_gap_percent, 0.0);
}

TEST(CompareWords, BadOnesAreUsageErrors) {
  EXPECT_NE(error_of({"a", "--max-gp", "1"}, ExitCode::usage).find("--max-gp; did you mean --max-gap?"), std::string::npos);
  EXPECT_NE(error_of({"a", "--basline=b"}, ExitCode::usage).find("did you mean --baseline?"), std::string::npos);
  error_of({"a", "-x"}, ExitCode::usage);
  error_of({"a", "-0.1"}, ExitCode::usage);
  error_of({}, ExitCode::usage);
  error_of({"a", "--max-gap"}, ExitCode::usage);
  error_of({"a", "--out"}, ExitCode::usage);
  error_of({"a", "--out", "--json", "x"}, ExitCode::usage);
  error_of({"a", "--out="}, ExitCode::usage);
  for (const char* word : {"low", "1x", "nan", "inf", "1e999", "+-1"}) error_of({"a", "--max-gap", word}, ExitCode::usage);
  error_of({"a", "--margin", "0"}, ExitCode::config);
  error_of({"a", "--margin", "-1"}, ExitCode::config);
}

TEST(CompareCommand, ExitCodes) {
  Runs runs;
  CompareRequest r;
  r.runs = {runs.bf16, runs.good, runs.bad};
  EXPECT_EQ(command_code(r), ExitCode::ok);
  r.options.max_gap_percent = 4;
  EXPECT_EQ(command_code(r), ExitCode::ok);
  r.options.max_gap_percent = 0.4;
  EXPECT_EQ(command_code(r), ExitCode::verdict_no);
  r.runs.pop_back();
  EXPECT_EQ(command_code(r), ExitCode::ok);
  r.options.max_gap_percent = -0.1;
  EXPECT_EQ(command_code(r), ExitCode::ok);
  r.options.max_gap_percent = -0.3;
  EXPECT_EQ(command_code(r), ExitCode::verdict_no);

  r.runs = {runs.bf16, runs.dir.path()};
  EXPECT_EQ(command_code(r), ExitCode::config);
  r.runs = {runs.bf16, runs.dir / "absent"};
  EXPECT_EQ(command_code(r), ExitCode::data);
  r.runs = {runs.bf16, fixture("malformed")};
  EXPECT_EQ(command_code(r), ExitCode::data);
  r.runs = {runs.bf16};
  EXPECT_EQ(command_code(r), ExitCode::usage);
}

TEST(CompareCommand, ARunThatDiedExitsWithOneUnderMaxGap) {
  TempDir dir;
  std::string lines, died;
  for (int step = 1; step <= 20; ++step) {
    const std::string line = fmt::format("{{\"kind\":\"train\",\"step\":{},\"tokens\":{},\"loss\":2,\"grad_norm\":1}}\n", step, 10 * step);
    lines += line;
    if (step < 20) died += line;
  }
  died += R"({"kind":"train","step":20,"tokens":200,"loss":2,"grad_norm":null,"skipped":true,"nonfinite":["grad_norm"]})" "\n";
  for (const auto& [name, text] : {std::pair("base", lines), std::pair("same", lines), std::pair("died", died)}) {
    std::filesystem::create_directories(dir / name);
    write_text(dir / name / "metrics.jsonl", text);
  }
  CompareRequest r;
  r.baselines = {dir / "base"};
  r.options.max_gap_percent = 1;
  r.runs = {dir / "same"};
  EXPECT_EQ(command_code(r), ExitCode::ok);
  r.runs = {dir / "died"};
  std::ostringstream out;
  EXPECT_EQ(run_comparison(r, out), ExitCode::verdict_no);
  EXPECT_NE(out.str().find("died: fail -- last step was skipped: non-finite values; --max-gap 1: no"), std::string::npos) << out.str();
}

TEST(CompareCommand, WritesTheReports) {
  Runs runs;
  CompareRequest r;
  r.runs = {runs.bf16, runs.good};
  r.html = runs.dir / "r.html";
  r.json = runs.dir / "r.json";
  r.svg = runs.dir / "r.svg";
  write_text(r.html, "an old report");
  std::ostringstream out;
  EXPECT_EQ(run_comparison(r, out), ExitCode::ok);
  EXPECT_NE(out.str().find("good: one pair -- final loss -0.200 % vs bf16"), std::string::npos) << out.str();
  EXPECT_TRUE(read_text(r.html).starts_with("<!DOCTYPE html>"));
  EXPECT_TRUE(read_text(r.svg).starts_with("<?xml"));
  EXPECT_NEAR(nlohmann::json::parse(read_text(r.json))["groups"][0]["gap_percent"].get<double>(), -0.2, 1e-9);
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(runs.dir.path())) files += entry.is_regular_file();
  EXPECT_EQ(files, 3u);  // nothing partial is left
}

TEST(CompareCommand, NothingIsOverwrittenOrWrittenOnAnError) {
  Runs runs;
  CompareRequest r;
  r.runs = {runs.bf16, runs.good};
  const std::string before = read_text(runs.good / "metrics.jsonl");
  r.json = runs.good / "../good/metrics.jsonl";
  EXPECT_EQ(command_code(r), ExitCode::config);
  EXPECT_EQ(read_text(runs.good / "metrics.jsonl"), before);
  r.json = runs.dir.path();
  EXPECT_EQ(command_code(r), ExitCode::config);
  r.json = runs.dir / "absent/r.json";
  EXPECT_EQ(command_code(r), ExitCode::config);
  r.json = r.html = runs.dir / "same";
  EXPECT_EQ(command_code(r), ExitCode::config);
  r.json = runs.dir / "r.json";
  r.html.clear();
  r.runs.push_back(runs.dir / "absent");
  EXPECT_EQ(command_code(r), ExitCode::data);
  EXPECT_FALSE(std::filesystem::exists(r.json));
}

TEST(CompareCommand, ABaselineAmongTheRunsCountsOnce) {
  Runs runs;
  CompareRequest r;
  r.runs = {runs.bf16, runs.good, runs.dir / "good/../good", runs.bad};
  r.baselines = {runs.good};
  r.twins = {runs.bad};
  std::ostringstream out;
  EXPECT_EQ(run_comparison(r, out), ExitCode::ok);
  EXPECT_NE(out.str().find("bf16: one pair -- final loss +0.200 % vs good"), std::string::npos) << out.str();
  EXPECT_NE(out.str().find("bad (twin)"), std::string::npos);
  EXPECT_EQ(out.str().find("good: "), std::string::npos);
}

TEST(CompareCommand, ACsvBesideARun) {
  Runs runs;
  std::string csv = "step,tokens,loss\n";
  for (const auto& p : report::read_run(runs.bf16).train) csv += fmt::format("{},{},{}\n", p.step, p.tokens, 1.01 * p.loss);
  write_text(runs.dir / "other.csv", csv);
  CompareRequest r;
  r.runs = {runs.bf16, runs.dir / "other.csv"};
  std::ostringstream out;
  EXPECT_EQ(run_comparison(r, out), ExitCode::ok);
  EXPECT_NE(out.str().find("other: one pair -- final loss +1.000 % vs bf16"), std::string::npos) << out.str();
  EXPECT_NE(out.str().find("smoothed training loss: no common validation"), std::string::npos);
}

}  // namespace
}  // namespace octet
