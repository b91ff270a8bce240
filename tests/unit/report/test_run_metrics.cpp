#include <cmath>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "fixture.h"
#include "report/line_reader.h"
#include "report/run_metrics.h"

namespace octet::report {
namespace {

using namespace octet::test;

// Reads the path, which must fail with the code; returns the whole message.
std::string run_failure(const std::filesystem::path& path, ExitCode code) {
  try {
    read_run(path);
  } catch (const Error& error) {
    EXPECT_EQ(error.code, code) << error.what();
    EXPECT_FALSE(error.fix.empty()) << error.what();
    return error.what();
  }
  ADD_FAILURE() << path << " was read";
  return {};
}

void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text << "\nlacks: " << part;
}

TEST(ReadRun, ARunDirectoryComesBackAsWritten) {
  TempDir dir;
  RunShape shape;
  shape.name = "blockwise-1";
  shape.recipe = "blockwise";
  shape.seed = 7;
  const RunMetrics want = make_run(shape), got = read_run(write_run(dir.path(), shape));
  EXPECT_EQ(got.name, "blockwise-1");
  EXPECT_EQ(got.recipe, "blockwise");
  EXPECT_EQ(got.seed, 7u);
  EXPECT_EQ(got.tokens_per_step, 1024);
  ASSERT_EQ(got.train.size(), want.train.size());
  for (size_t i = 0; i < want.train.size(); ++i) {
    EXPECT_EQ(got.train[i].step, want.train[i].step);
    EXPECT_EQ(got.train[i].tokens, want.train[i].tokens);
    EXPECT_EQ(got.train[i].loss, want.train[i].loss);
    EXPECT_EQ(got.train[i].grad_norm, want.train[i].grad_norm);
    EXPECT_EQ(got.train[i].tokens_per_s, want.train[i].tokens_per_s);
  }
  ASSERT_EQ(got.valid.size(), 4u);
  EXPECT_EQ(got.valid[3].loss, want.valid[3].loss);
  EXPECT_EQ(got.quantized, (std::map<std::string, double>{{"dy.e5m2", 5e5}, {"x.e4m3", 1e6}}));
  EXPECT_EQ(got.resumes, 0);
  EXPECT_EQ(got.files.size(), 2u);
}

TEST(ReadRun, AfterAResumeTheLaterLinesCount) {
  const RunMetrics run = read_run(fixture("resumed"));
  EXPECT_EQ(run.name, "resumed");
  EXPECT_EQ(run.recipe, "resumed");  // no config
  EXPECT_FALSE(run.seed);
  EXPECT_EQ(run.resumes, 1);
  ASSERT_EQ(run.train.size(), 5u);
  EXPECT_EQ(run.train[2].loss, 3.0);
  EXPECT_FALSE(run.train[2].non_finite);  // that was in the first life
  EXPECT_TRUE(std::isnan(run.train[3].loss) && run.train[3].skipped && run.train[3].non_finite);
  EXPECT_TRUE(run.train[4].non_finite && std::isfinite(run.train[4].loss));  // named by an event
  EXPECT_EQ(run.skipped_steps(), 2);
  EXPECT_EQ(run.non_finite_steps(), 2);
  ASSERT_EQ(run.valid.size(), 2u);
  EXPECT_EQ(run.valid[0].tokens, 20);  // from the train line of its step
  EXPECT_EQ(run.valid[1].loss, 2.5);
  EXPECT_EQ(run.quantized.at("x.e4m3"), 100);
}

TEST(ReadRun, StepsOfTheEarlierLifeBehindAResumeAreDropped) {
  TempDir dir;
  std::string text;
  const auto line = [](int step, double loss) {
    return fmt::format("{{\"kind\":\"train\",\"step\":{},\"tokens\":{},\"loss\":{}}}\n", step, step * 8, loss);
  };
  for (int step = 1; step <= 9; ++step) text += line(step, 9);
  write_text(dir / "metrics.jsonl", text + line(4, 3) + line(5, 3));
  const RunMetrics run = read_run(dir.path());
  ASSERT_EQ(run.train.size(), 5u);
  EXPECT_EQ(run.train[2].loss, 9);
  EXPECT_EQ(run.train[4].loss, 3);
}

TEST(ReadRun, ATornLastLineIsPassedOverWithANote) {
  const RunMetrics run = read_run(fixture("torn"));
  EXPECT_EQ(run.train.size(), 1u);
  ASSERT_EQ(run.notes.size(), 1u);
  expect_contains(run.notes[0], "metrics.jsonl:2: torn last line");
}

TEST(ReadRun, BadMetricsAreRefusedWithFileAndLine) {
  expect_contains(run_failure(fixture("malformed"), ExitCode::data), "malformed/metrics.jsonl:2: not a JSON object");
  expect_contains(run_failure(fixture("not_object"), ExitCode::data), "metrics.jsonl:1: not a JSON object");
  expect_contains(run_failure(fixture("negative_step"), ExitCode::data), "metrics.jsonl:1: \"step\" is not a whole number");
  expect_contains(run_failure(fixture("huge_number"), ExitCode::data), "metrics.jsonl:1: \"tokens\" is not a whole number");
  expect_contains(run_failure(fixture("no_loss"), ExitCode::data), "metrics.jsonl:1: the line has no \"loss\"");
  expect_contains(run_failure(fixture("tokens_not_cumulative"), ExitCode::data), "do not grow from step 1 (1024) to step 2 (1024)");
  expect_contains(run_failure(fixture("bad_quantized"), ExitCode::data), "metrics.jsonl:2: \"quantized\"");
  expect_contains(run_failure(fixture("no_steps"), ExitCode::data), "no training step");
  expect_contains(run_failure(fixture("bad_config"), ExitCode::data), "config.resolved.json: run.seed");
}

TEST(ReadRun, WhatIsNoRunIsRefused) {
  TempDir dir;
  expect_contains(run_failure(fixture("no_metrics"), ExitCode::config), "no metrics.jsonl");
  expect_contains(run_failure(dir / "absent", ExitCode::data), "no such file");
  write_text(dir / "notes.txt", "hello");
  expect_contains(run_failure(dir / "notes.txt", ExitCode::data), "neither a run directory, nor a TensorBoard folder, nor a .csv file");
  std::filesystem::create_directories(dir / "pipe");
  std::filesystem::create_symlink("/dev/zero", dir / "pipe/metrics.jsonl");
  expect_contains(run_failure(dir / "pipe", ExitCode::data), "cannot read the file");
}

TEST(ReadRun, HostileJsonIsRefused) {
  TempDir dir;
  write_text(dir / "metrics.jsonl", std::string(2000000, '[') + "\n");
  expect_contains(run_failure(dir.path(), ExitCode::data), "metrics.jsonl:1: not a JSON object");
  write_text(dir / "metrics.jsonl", std::string(LineReader::max_line_bytes + 1, ' '));
  expect_contains(run_failure(dir.path(), ExitCode::data), "longer than 16 MiB");
  write_text(dir / "metrics.jsonl", "{\"kind\":\"train\",\"step\":1,\"tokens\":1,\"loss\":1e999}\n");
  expect_contains(run_failure(dir.path(), ExitCode::data), "metrics.jsonl:1");
  write_text(dir / "metrics.jsonl", "{\"kind\":\"train\",\"step\":1,\"tokens\":1,\"loss\":1}\n");
  write_text(dir / "config.resolved.json", "{\"batch\":{\"global\":4294967296},\"data\":{\"seq_len\":4294967296}}");
  expect_contains(run_failure(dir.path(), ExitCode::data), "batch.global");
  write_text(dir / "config.resolved.json", std::string(100000, '['));
  expect_contains(run_failure(dir.path(), ExitCode::data), "config.resolved.json: not a JSON object");
}

TEST(ReadRun, ACsv) {
  const RunMetrics run = read_run(fixture("good.csv"));
  EXPECT_EQ(run.name, "good");
  ASSERT_EQ(run.train.size(), 3u);
  EXPECT_EQ(run.train[2].tokens, 3072);
  EXPECT_EQ(run.train[2].loss, 4.0);
  EXPECT_TRUE(std::isnan(run.train[2].grad_norm));
  EXPECT_TRUE(run.valid.empty());
}

TEST(ReadRun, ACsvInAnotherOrderWithMoreColumns) {
  TempDir dir;
  write_text(dir / "a.csv", "\xEF\xBB\xBFloss, step ,tokens,grad_norm,colour\r\n5.5,1,10,2,red\r\nnan,2,20,,blue\r\n\r\n4.5,3,30,1,red");
  const RunMetrics run = read_run(dir / "a.csv");
  ASSERT_EQ(run.train.size(), 3u);
  EXPECT_EQ(run.train[0].grad_norm, 2);
  EXPECT_TRUE(run.train[1].non_finite && std::isnan(run.train[1].grad_norm));
  EXPECT_EQ(run.train[2].loss, 4.5);
  ASSERT_EQ(run.notes.size(), 1u);
  expect_contains(run.notes[0], "column 'colour' is not used");
}

TEST(ReadRun, WholeNumbersOfACsvMayBeWrittenAsReals) {
  TempDir dir;
  write_text(dir / "a.csv", "step,tokens,loss,tokens_per_s\n1.0,1e1,3,nan\n2e0,2.5e2,inf,5\n3,9007199254740991.0,2,inf\n");
  const RunMetrics run = read_run(dir / "a.csv");
  ASSERT_EQ(run.train.size(), 3u);
  EXPECT_EQ(run.train[0].step, 1);
  EXPECT_EQ(run.train[0].tokens, 10);
  EXPECT_EQ(run.train[1].step, 2);
  EXPECT_EQ(run.train[1].tokens, 250);
  EXPECT_EQ(run.train[2].tokens, (int64_t{1} << 53) - 1);
  EXPECT_FALSE(run.train[0].non_finite || run.train[2].non_finite);  // a speed is no value of the training
  EXPECT_TRUE(run.train[1].non_finite);
}

TEST(ReadRun, ANullGradientNormOrALateEventIsNonFinite) {
  TempDir dir;
  const std::string good = R"({"kind":"train","step":1,"tokens":1,"loss":1,"grad_norm":1,"mfu_causal":null,"nonfinite":["mfu_causal"]})";
  write_text(dir / "metrics.jsonl", good + "\n");
  EXPECT_FALSE(read_run(dir.path()).train.back().non_finite);
  EXPECT_FALSE(read_run(dir.path()).non_finite_after_end);
  write_text(dir / "metrics.jsonl", good + "\n" + R"({"kind":"train","step":2,"tokens":2,"loss":1,"grad_norm":null})" + "\n");
  EXPECT_TRUE(read_run(dir.path()).train.back().non_finite);
  write_text(dir / "metrics.jsonl", good + "\n" + R"({"kind":"event","event":"nonfinite","step":2})" + "\n");
  EXPECT_TRUE(read_run(dir.path()).non_finite_after_end);
}

TEST(ReadRun, BadCsvsAreRefusedWithFileAndLine) {
  TempDir dir;
  expect_contains(run_failure(fixture("bad_number.csv"), ExitCode::data), "bad_number.csv:3: column loss holds 'five'");
  expect_contains(run_failure(fixture("no_tokens.csv"), ExitCode::data), "no_tokens.csv:1: the header row has no column 'tokens'");
  expect_contains(run_failure(fixture("short_row.csv"), ExitCode::data), "short_row.csv:2: the row has 2 cells, the header 3");
  expect_contains(run_failure(fixture("empty.csv"), ExitCode::data), "empty.csv: the file is empty");
  write_text(dir / "a.csv", "step,tokens,loss,loss\n");
  expect_contains(run_failure(dir / "a.csv", ExitCode::data), "'loss' appears twice");
  write_text(dir / "a.csv", "step,tokens,loss\n-1,2,3\n");
  expect_contains(run_failure(dir / "a.csv", ExitCode::data), "a.csv:2: column step is not between");
  write_text(dir / "a.csv", "step,tokens,loss\n1,99999999999999999999,3\n");
  expect_contains(run_failure(dir / "a.csv", ExitCode::data), "a.csv:2: column tokens is not between");
  for (const char* tokens : {"1e17", "-1e1", "9007199254740993.0"}) {
    write_text(dir / "a.csv", fmt::format("step,tokens,loss\n1,{},3\n", tokens));
    expect_contains(run_failure(dir / "a.csv", ExitCode::data), "a.csv:2: column tokens is not between");
  }
  for (const char* tokens : {"10.5", "1e-1", "nan", "inf", "1e999", "1e1x", "0x10", ""}) {
    write_text(dir / "a.csv", fmt::format("step,tokens,loss\n1,{},3\n", tokens));
    expect_contains(run_failure(dir / "a.csv", ExitCode::data), "a.csv:2: column tokens holds");
  }
  write_text(dir / "a.csv", "step,tokens,loss\n");
  expect_contains(run_failure(dir / "a.csv", ExitCode::data), "no training step");
}

TEST(FlattenConfig, DottedKeys) {
  const auto flat = flatten_config(nlohmann::json::parse(R"({"a":{"b":1,"c":[1,2]},"d":"x","e":{}})"));
  EXPECT_EQ(flat, (std::map<std::string, std::string>{{"a.b", "1"}, {"a.c", "[1,2]"}, {"d", "\"x\""}, {"e", "{}"}}));
}

}  // namespace
TEST(ReadRun, TheDataOfTheLastStartCounts) {
  TempDir dir;
  write_text(dir / "metrics.jsonl",
             R"({"kind":"event","event":"start","data":[{"tokens":7,"sequences":2}]}
{"kind":"train","step":1,"tokens":4,"loss":2.5}
{"kind":"event","event":"start","data":[{"tokens":9,"sequences":2}]}
{"kind":"train","step":2,"tokens":8,"loss":2.4}
)");
  EXPECT_EQ(read_run(dir.path()).data, R"([{"sequences":2,"tokens":9}])");
}

}  // namespace octet::report
