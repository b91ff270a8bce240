#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <signal.h>
#include <sys/resource.h>

#include "core/error.h"
#include "fixture.h"
#include "report/metrics.h"

namespace octet {
namespace {

using nlohmann::json;
using namespace octet::test;

std::vector<json> lines_of(const std::filesystem::path& path) {
  std::vector<json> lines;
  std::string text = read_text(path);
  EXPECT_TRUE(text.empty() || text.back() == '\n');
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    lines.push_back(json::parse(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return lines;
}

TEST(MetricsWriter, WritesTheContractsKeysAndNumbersRoundTrip) {
  TempDir dir;
  const TrainRecord record{7, 7168, 1.0 / 3, std::nextafter(1.0, 2.0), 5e-4, 12345.678901234567, 0.1};
  {
    MetricsWriter writer(dir.path());
    writer.train(record, {{"mfu", 0.25}, {"skipped", false}});
    writer.valid(7, 7168, static_cast<double>(0.1f));
    writer.event("start", {{"host", "a\nb"}});
  }
  const auto lines = lines_of(dir / "metrics.jsonl");
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0]["kind"], "train");
  EXPECT_EQ(lines[0]["step"], 7);
  EXPECT_EQ(lines[0]["tokens"], 7168);
  EXPECT_EQ(lines[0]["loss"].get<double>(), record.loss);
  EXPECT_EQ(lines[0]["grad_norm"].get<double>(), record.grad_norm);
  EXPECT_EQ(lines[0]["lr"].get<double>(), record.lr);
  EXPECT_EQ(lines[0]["tokens_per_s"].get<double>(), record.tokens_per_s);
  EXPECT_EQ(lines[0]["step_ms"].get<double>(), record.step_ms);
  EXPECT_EQ(lines[0]["mfu"], 0.25);
  EXPECT_FALSE(lines[0].contains("nonfinite"));
  EXPECT_EQ(lines[1], (json{{"kind", "valid"}, {"step", 7}, {"tokens", 7168}, {"loss", static_cast<double>(0.1f)}}));
  EXPECT_EQ(lines[2], (json{{"kind", "event"}, {"event", "start"}, {"host", "a\nb"}}));
}

TEST(MetricsWriter, EachLineIsInTheFileWhenTheCallReturns) {
  TempDir dir;
  MetricsWriter writer(dir.path());
  for (int i = 1; i <= 3; ++i) {
    writer.train({i, i, 1, 1, 1, 1, 1});
    EXPECT_EQ(lines_of(dir / "metrics.jsonl").size(), static_cast<size_t>(i));
  }
}

TEST(MetricsWriter, NonFiniteNumbersBecomeNullAndAreNamed) {
  TempDir dir;
  MetricsWriter writer(dir.path());
  writer.train({1, 10, NAN, INFINITY, 1e-3, 5, 2}, {{"amax", {{"x", -INFINITY}, {"w", 2.0}}}});
  const auto line = lines_of(dir / "metrics.jsonl").at(0);
  EXPECT_TRUE(line["loss"].is_null() && line["grad_norm"].is_null() && line["amax"]["x"].is_null());
  EXPECT_EQ(line["amax"]["w"], 2.0);
  EXPECT_EQ(line["nonfinite"], (json{"amax.x", "grad_norm", "loss"}));
}

TEST(MetricsWriter, ContinuesAfterATornLine) {
  TempDir dir;
  const std::string good = "{\"kind\":\"train\",\"step\":1,\"tokens\":10,\"loss\":5.0}\n";
  for (const std::string& torn : {std::string("{\"kind\":\"tra"), "{\"x\":\"" + std::string(10000, 'y')}) {
    write_text(dir / "metrics.jsonl", good + torn);
    MetricsWriter(dir.path()).train({2, 20, 4, 1, 1, 1, 1});
    const auto lines = lines_of(dir / "metrics.jsonl");
    ASSERT_EQ(lines.size(), 3u);
    EXPECT_EQ(lines[0]["step"], 1);
    EXPECT_EQ(lines[1], (json{{"kind", "event"}, {"event", "metrics_repaired"}, {"bytes_removed", torn.size()}}));
    EXPECT_EQ(lines[2]["step"], 2);
  }
}

TEST(MetricsWriter, KeepsALineThatOnlyLacksItsNewline) {
  TempDir dir;
  write_text(dir / "metrics.jsonl", "{\"kind\":\"valid\",\"step\":1}");
  MetricsWriter(dir.path()).valid(2, 20, 1.5);
  const auto lines = lines_of(dir / "metrics.jsonl");
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0]["step"], 1);
  EXPECT_EQ(lines[1]["bytes_removed"], 0);
  EXPECT_EQ(lines[2]["step"], 2);
}

TEST(MetricsWriter, AFullDiskIsACheckpointError) {
  TempDir dir;
  std::filesystem::create_symlink("/dev/full", dir / "metrics.jsonl");
  MetricsWriter writer(dir.path());
  try {
    writer.valid(1, 1, 1);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code, ExitCode::checkpoint);
    EXPECT_NE(error.message.find("No space left"), std::string::npos);
    EXPECT_FALSE(error.fix.empty());
  }
}

TEST(MetricsWriter, APartlyWrittenLineIsTakenBack) {
  TempDir dir;
  MetricsWriter writer(dir.path());
  writer.valid(1, 1, 1);
  const auto size = std::filesystem::file_size(dir / "metrics.jsonl");
  ::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit limit = before;
  limit.rlim_cur = size + 10;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  EXPECT_THROW(writer.valid(2, 2, 2), Error);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(std::filesystem::file_size(dir / "metrics.jsonl"), size);
  writer.valid(3, 3, 3);
  EXPECT_EQ(lines_of(dir / "metrics.jsonl").size(), 2u);
}

TEST(MetricsWriter, ADirectoryThatIsNotThereIsAnError) {
  TempDir dir;
  EXPECT_THROW(MetricsWriter(dir / "absent"), Error);
}

TEST(MetricsWriter, ExtraKeysCannotReplaceTheContracts) {
  TempDir dir;
  MetricsWriter writer(dir.path());
  EXPECT_THROW(writer.valid(1, 1, 1, {{"loss", 2}}), Error);
  EXPECT_THROW(writer.valid(1, 1, 1, json::array({1})), Error);
  EXPECT_EQ(std::filesystem::file_size(dir / "metrics.jsonl"), 0u);
}

}  // namespace
}  // namespace octet
