// Event files byte by byte; that TensorBoard's own reader agrees is tested in tests/cli/test_logging.py.
#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include "core/error.h"
#include "fixture.h"
#include "report/crc32c.h"
#include "report/tensorboard.h"

namespace octet {
namespace {

using namespace octet::test;

std::string hex(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) out += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return out;
}

std::vector<std::filesystem::path> files_of(const std::filesystem::path& directory) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

// How often a scalar stands in a file: its record behind the wall time, which is the message from the step on.
int64_t count_of(const std::filesystem::path& file, int64_t step, std::string_view tag, float value) {
  const std::string record = event_record::scalar(0, step, tag, value);
  const std::string message = record.substr(12 + 9, record.size() - 12 - 9 - 4), content = read_text(file);
  int64_t n = 0;
  for (size_t at = content.find(message); at != std::string::npos; at = content.find(message, at + 1)) ++n;
  return n;
}

TensorBoardOptions options(bool megatron = false) {
  TensorBoardOptions o;
  o.megatron_names = megatron;
  o.global_batch = 16;
  o.seq_len = 256;
  o.flops_per_token = 5e6;
  return o;
}

TrainRecord train_record(int64_t step) { return {step, step * 16 * 256, 2.5, 1.25, 5e-4, 2e6, 125}; }

TEST(Crc32c, KnownValues) {
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(masked_crc32c("123456789"), 0xC78AB0E5u);
  EXPECT_EQ(crc32c(""), 0u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);    // RFC 3720, B.4
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62A8AB43u);  // RFC 3720, B.4
}

TEST(EventRecord, GoldenBytes) {
  EXPECT_EQ(hex(event_record::version(1.0)), "1800000000000000a37f4b2209000000000000f03f1a0d627261696e2e4576656e743a3286bf577a");
  EXPECT_EQ(hex(event_record::scalar(1.0, 7, "lm loss", 2.5f)),
            "1d00000000000000602fdf2309000000000000f03f10072a100a0e0a076c6d206c6f7373150000204089174d33");
}

TEST(EventRecord, LargeStepsAndLongTextsTakeSeveralBytes) {
  const std::string scalar = event_record::scalar(1.0, 300, "t", NAN);
  EXPECT_EQ(hex(scalar).substr(24 + 18, 6), "10ac02");
  const std::string text(1000, 'x');
  const std::string record = event_record::text(1.0, 0, "config", text);
  EXPECT_NE(record.find("\x42\xe8\x07" + text), std::string::npos);  // string_val, 1000 bytes
}

TEST(EventFile, BeginsWithTheVersionAndAppearsAtOnce) {
  TempDir dir;
  EventFile file(dir / "tb", 1);
  const auto files = files_of(dir / "tb");
  ASSERT_EQ(files.size(), 1u);
  EXPECT_EQ(files[0], file.path());
  EXPECT_EQ(files[0].filename().string().rfind("events.out.tfevents.", 0), 0u);
  EXPECT_EQ(read_text(files[0]).size(), event_record::version(1.0).size());  // no restart mark in the first file
  file.scalar(1, "a", 1);
  EXPECT_EQ(count_of(files[0], 1, "a", 1), 0);
  file.flush();
  EXPECT_EQ(count_of(files[0], 1, "a", 1), 1);
}

TEST(EventFile, ARestartIsASecondFileThatSortsLastAndForgets) {
  TempDir dir;
  std::filesystem::path first, second, third;
  {
    EventFile file(dir / "tb", 1);
    first = file.path();
    file.scalar(1, "kept by the destructor", 1);
  }
  EXPECT_EQ(count_of(first, 1, "kept by the destructor", 1), 1);
  {
    EventFile file(dir / "tb", 15);
    second = file.path();
  }
  EXPECT_LT(first.filename(), second.filename());
  const std::string start = event_record::session_start(0, 15);
  const std::string message = start.substr(12 + 9, start.size() - 12 - 9 - 4);
  EXPECT_EQ(hex(message), "100f3a020801");
  EXPECT_NE(read_text(second).find(message), std::string::npos);
  // A clock that was ahead, and names that hold no time.
  write_text(dir / "tb" / "events.out.tfevents.4000000000.host.1.0", "");
  write_text(dir / "tb" / "events.out.tfevents.x", "");
  write_text(dir / "tb" / "events.out.tfevents.99999999999999999999999.host", "");
  write_text(dir / "tb" / "other", "");
  third = EventFile(dir / "tb", 2).path();
  EXPECT_EQ(third.filename().string().rfind("events.out.tfevents.4000000001.", 0), 0u) << third;
}

TEST(EventFile, APartlyWrittenFlushIsTakenBack) {
  TempDir dir;
  EventFile file(dir / "tb", 1);
  const auto size = std::filesystem::file_size(file.path());
  ::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit limit = before;
  limit.rlim_cur = size + 10;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  file.scalar(1, "a", 1);
  std::optional<Error> error;
  try {
    file.flush();
  } catch (const Error& e) {
    error = e;
  }
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code, ExitCode::checkpoint);
  EXPECT_FALSE(error->fix.empty());
  EXPECT_EQ(error->where, file.path().string());
  EXPECT_EQ(std::filesystem::file_size(file.path()), size);
}

TEST(EventFile, APathThatCannotBeADirectoryIsACheckpointError) {
  TempDir dir;
  write_text(dir / "tb", "a file");
  try {
    EventFile file(dir / "tb", 1);
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.code, ExitCode::checkpoint);
  }
}

TEST(TensorBoard, OwnNames) {
  TempDir dir;
  TensorBoard tb(dir.path(), options(), "{\"run\": 1}");
  tb.train(train_record(3), 0.25, 0.125);
  const std::vector<std::pair<std::string, double>> sets{{"wiki", 3.0}, {"code", 2.0}};
  tb.valid(3, 3 * 4096, 3.0, sets);
  tb.flush();
  const auto files = files_of(dir / "tb");
  ASSERT_EQ(files.size(), 1u);
  const std::vector<std::pair<std::string, float>> expected{{"train/loss", 2.5f},       {"train/grad_norm", 1.25f},  {"train/lr", 5e-4f},
                                                            {"train/z_loss", 0.125f},   {"perf/tokens_per_s", 2e6f}, {"perf/step_ms", 125.0f},
                                                            {"perf/mfu", 0.25f},        {"valid/loss", 3.0f},        {"valid/wiki/loss", 3.0f},
                                                            {"valid/code/loss", 2.0f}};
  for (const auto& [tag, value] : expected) EXPECT_EQ(count_of(files[0], 3, tag, value), 1) << tag;
  EXPECT_NE(read_text(files[0]).find("```json\n{\"run\": 1}\n```"), std::string::npos);
}

TEST(TensorBoard, MegatronNamesAndTheirTwinsOverSamples) {
  TempDir dir;
  {
    TensorBoard tb(dir.path(), options(true), "{}");
    tb.train(train_record(3), 0.25);
    tb.valid(3, 3 * 4096, 3.0);
  }
  const auto steps = files_of(dir / "tb"), samples = files_of(dir / "tb" / "vs_samples");
  ASSERT_EQ(steps.size(), 1u);
  ASSERT_EQ(samples.size(), 1u);
  const std::vector<std::pair<std::string, float>> both{{"lm loss", 2.5f}, {"grad-norm", 1.25f}, {"learning-rate", 5e-4f}, {"batch-size", 16.0f}, {"loss-scale", 1.0f},
                                                        {"lm loss validation", 3.0f}, {"lm loss validation ppl", static_cast<float>(std::exp(3.0))}};
  for (const auto& [tag, value] : both) {
    EXPECT_EQ(count_of(steps[0], 3, tag, value), 1) << tag;
    EXPECT_EQ(count_of(samples[0], 48, tag + " vs samples", value), 1) << tag;
  }
  EXPECT_EQ(count_of(steps[0], 3, "iteration-time", 0.125f), 1);  // seconds
  EXPECT_EQ(count_of(steps[0], 3, "throughput", 10.0f), 1);       // 5e6 FLOPs a token, 2e6 tokens/s
  EXPECT_EQ(read_text(steps[0]).find("train/loss"), std::string::npos);
}

TEST(TensorBoard, HealthIsTheWorstSiteOfEachRole) {
  TempDir dir;
  TensorBoard tb(dir.path(), options(), "{}");
  const std::vector<std::string> roles{"x", "x", "w", "w"};
  const std::vector<double> amax{1, 4, 2, 3}, underflow{0.5, 0.25, 0, 0.125}, saturation{0, 0.5, 0, 0}, sqnr{30, 20, NAN, NAN}, cosine{NAN, 0.5, 0.75, 1};
  const std::vector<int64_t> nonfinite{1, 2, 0, 0};
  tb.health(100, {roles, amax, underflow, saturation, sqnr, cosine, nonfinite});
  tb.flush();
  const auto file = files_of(dir / "tb").at(0);
  const std::vector<std::pair<std::string, float>> expected{
      {"fp8/x/amax_max", 4.0f}, {"fp8/x/underflow_max", 0.5f}, {"fp8/x/saturation_max", 0.5f}, {"fp8/x/sqnr_db_min", 20.0f}, {"fp8/x/cosine_min", 0.5f}, {"fp8/x/nonfinite", 3.0f},
      {"fp8/w/amax_max", 3.0f}, {"fp8/w/underflow_max", 0.125f}, {"fp8/w/saturation_max", 0.0f}, {"fp8/w/cosine_min", 0.75f}, {"fp8/w/nonfinite", 0.0f}};
  for (const auto& [tag, value] : expected) EXPECT_EQ(count_of(file, 100, tag, value), 1) << tag;
  EXPECT_EQ(read_text(file).find("fp8/w/sqnr_db_min"), std::string::npos);  // undefined everywhere
  EXPECT_EQ(read_text(file).find("fp8/dy"), std::string::npos);             // no such site
  EXPECT_THROW(tb.health(100, {roles, amax, underflow, saturation, sqnr, cosine, {}}), Error);
}

}  // namespace
}  // namespace octet
