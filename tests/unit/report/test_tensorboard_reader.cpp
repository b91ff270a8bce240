// Event files: framing, checksums, the tags of several trainers, resumes, damage.
#include <bit>
#include <cmath>
#include <gtest/gtest.h>

#include "core/error.h"
#include "fixture.h"
#include "report/crc32c.h"
#include "report/tensorboard_reader.h"

namespace octet::report {
namespace {

using namespace octet::test;

std::string le(uint64_t v, int bytes) {
  std::string out;
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(v >> 8 * i & 0xff);
  return out;
}
std::string varint(uint64_t v) {
  std::string out;
  for (; v >= 0x80; v >>= 7) out += static_cast<char>(v | 0x80);
  return out + static_cast<char>(v);
}
std::string bytes_field(int number, const std::string& bytes) { return varint(static_cast<uint64_t>(number) << 3 | 2) + varint(bytes.size()) + bytes; }
std::string float_bytes(float v) { return le(std::bit_cast<uint32_t>(v), 4); }

std::string framed(const std::string& payload) {
  const std::string length = le(payload.size(), 8);
  return length + le(masked_crc32c(length), 4) + payload + le(masked_crc32c(payload), 4);
}
std::string event(uint64_t step, const std::string& rest) { return framed("\x09" + le(0, 8) + "\x10" + varint(step) + rest); }
std::string scalar(uint64_t step, const std::string& tag, float value) {
  return event(step, bytes_field(5, bytes_field(1, bytes_field(1, tag) + "\x15" + float_bytes(value))));
}
std::string tensor(uint64_t step, const std::string& tag, const std::string& proto) {
  return event(step, bytes_field(5, bytes_field(1, bytes_field(1, tag) + bytes_field(8, proto))));
}
std::string start(uint64_t step) { return event(step, bytes_field(7, "\x08\x01")); }

std::string from_hex(std::string_view hex) {
  std::string out;
  for (size_t i = 0; i < hex.size(); i += 2) out += static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16));
  return out;
}

std::string read_failure(const std::string& bytes) {
  try {
    parse_tensorboard(bytes, "file");
  } catch (const Error& error) {
    EXPECT_EQ(error.code, ExitCode::data);
    return error.what();
  }
  return {};
}

const std::string kVersion = from_hex("1800000000000000a37f4b2209000000000000f03f1a0d627261696e2e4576656e743a3286bf577a");

TEST(TensorboardReader, ReadsTensorboardsOwnBytes) {
  const auto out = parse_tensorboard(kVersion + from_hex("1d00000000000000602fdf2309000000000000f03f10072a100a0e0a076c6d206c6f7373150000204089174d33"), "file");
  ASSERT_EQ(out.scalars.size(), 1u);
  EXPECT_EQ(out.scalars[0].step, 7);
  EXPECT_EQ(out.scalars[0].role, ScalarRole::loss);
  EXPECT_EQ(out.scalars[0].value, 2.5);
  EXPECT_FALSE(out.torn);
}

TEST(TensorboardReader, ReadsTensorsPackedOrNotAndPassesOthersOver) {
  const std::string floats = "\x08\x01", doubles = "\x08\x02";
  const auto out = parse_tensorboard(tensor(1, "lm_loss", floats + bytes_field(4, float_bytes(1))) + tensor(2, "lm_loss", floats + bytes_field(5, float_bytes(2))) +
                                         tensor(3, "lm_loss", floats + "\x2d" + float_bytes(3)) +
                                         tensor(4, "lm_loss", doubles + bytes_field(4, le(std::bit_cast<uint64_t>(4.0), 8))) +
                                         tensor(5, "lm_loss", "\x08\x07" + bytes_field(8, "text")) + scalar(6, "other", 1),
                                     "file");
  ASSERT_EQ(out.scalars.size(), 4u);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(out.scalars[static_cast<size_t>(i)].value, i + 1);
}

TEST(TensorboardReader, ATornLastRecordIsToleratedAtEveryLength) {
  const std::string first = scalar(1, "lm loss", 3), second = scalar(2, "lm loss", 2);
  for (size_t n = 1; n < second.size(); ++n) {
    const auto out = parse_tensorboard(first + second.substr(0, n), "file");
    EXPECT_TRUE(out.torn) << n;
    EXPECT_EQ(out.scalars.size(), 1u);
  }
}

TEST(TensorboardReader, EveryFlippedBitIsRefused) {
  const std::string good = scalar(1, "lm loss", 3) + scalar(2, "lm loss", 2);
  for (size_t i = 0; i < good.size() / 2; ++i) {
    std::string damaged = good;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x10);
    EXPECT_NE(read_failure(damaged).find("file, record 1: the checksum of the"), std::string::npos) << i;
  }
}

TEST(TensorboardReader, HostileMessagesAreRefused) {
  for (const std::string& payload : {std::string("\x2a\xff\xff\xff\xff\x0f"), std::string("\x0b"), std::string(11, '\xff'), std::string("\x09\x01"),
                                     std::string("\x2a\x03\x0a\x7f\x01"), std::string("\x10")}) {
    EXPECT_NE(read_failure(framed(payload)).find("not a well-formed event"), std::string::npos);
  }
  EXPECT_NE(read_failure(event(uint64_t{1} << 60, "")).find("step is not between"), std::string::npos);
  EXPECT_NE(read_failure(event(~uint64_t{0}, "")).find("step is not between"), std::string::npos);  // -1
  const std::string length = le(uint64_t{1} << 62, 8);
  EXPECT_NE(read_failure(length + le(masked_crc32c(length), 4)).find("more than"), std::string::npos);
  EXPECT_NE(read_failure("step,tokens,loss\n1,2,3\n").find("not an event file"), std::string::npos);
  EXPECT_TRUE(parse_tensorboard("", "file").scalars.empty());
}

struct Folder : TempDir {
  void write(const std::string& name, const std::string& bytes) { write_text(*this / name, bytes); }
};

TEST(TensorboardReader, AMegatronFolderIsARun) {
  Folder dir;
  std::string bytes = kVersion;
  for (uint64_t step = 1; step <= 4; ++step) {
    bytes += scalar(step, "learning-rate", 0.5f) + scalar(step, "lm loss", 4.0f - static_cast<float>(step) / 4) + scalar(step, "grad-norm", step == 3 ? NAN : 1.5f);
  }
  dir.write("events.out.tfevents.1.host", bytes + scalar(4, "lm loss validation", 3.25f) + scalar(9, "lm loss", 1).substr(0, 9));
  const RunMetrics run = read_run(dir.path());
  ASSERT_EQ(run.train.size(), 4u);
  EXPECT_EQ(run.train[0].tokens, 1);  // steps stand for tokens
  EXPECT_EQ(run.train[1].loss, 3.5);
  EXPECT_EQ(run.train[1].lr, 0.5);
  EXPECT_EQ(run.train[1].grad_norm, 1.5);
  EXPECT_FALSE(run.train[1].non_finite);
  EXPECT_TRUE(run.train[2].non_finite);
  ASSERT_EQ(run.valid.size(), 1u);
  EXPECT_EQ(run.valid[0].loss, 3.25);
  ASSERT_EQ(run.notes.size(), 2u);
  EXPECT_NE(run.notes[0].find("torn last record"), std::string::npos);
  EXPECT_NE(run.notes[1].find("aligned by steps"), std::string::npos);
}

TEST(TensorboardReader, TokensComeFromTheirTagOrTheConfig) {
  Folder dir;
  dir.write("a.tfevents.1", scalar(1, "loss_metrics/global_avg_loss", 3) + scalar(1, "n_tokens_seen", 512) + scalar(2, "n_tokens_seen", 1024) +
                                scalar(2, "loss_metrics/global_avg_loss", 2));
  EXPECT_EQ(read_run(dir.path()).train[1].tokens, 1024);
  const auto tb = dir / "run/tb";
  std::filesystem::create_directories(tb);
  write_text(dir / "run/config.resolved.json", R"({"precision":{"recipe":"mxfp8"},"run":{"seed":5},"batch":{"global":4},"data":{"seq_len":256}})");
  write_text(tb / "events.out.tfevents.7", scalar(1, "train/loss", 3) + scalar(2, "train/loss", 2) + scalar(2, "valid/loss", 2.5f));
  const RunMetrics run = read_run(tb);
  EXPECT_EQ(run.name, "run");
  EXPECT_EQ(run.recipe, "mxfp8");
  EXPECT_EQ(run.seed, 5u);
  EXPECT_EQ(run.train[1].tokens, 2048);
  EXPECT_EQ(run.valid[0].tokens, 2048);
  EXPECT_TRUE(run.notes.empty());
}

TEST(TensorboardReader, TheLaterRecordCountsAfterAResume) {
  for (const bool announced : {true, false}) {
    Folder dir;
    std::string first, second = announced ? start(3) : "";
    for (uint64_t step = 1; step <= 5; ++step) first += scalar(step, "lm loss", 1);
    for (uint64_t step = 3; step <= 4; ++step) second += scalar(step, "learning-rate", 7) + scalar(step, "lm loss", 2);
    dir.write("x.tfevents.1", first);
    dir.write("x.tfevents.2", second);
    const RunMetrics run = read_run(dir.path());
    ASSERT_EQ(run.train.size(), 4u) << announced;
    EXPECT_EQ(run.train[1].loss, 1);
    EXPECT_EQ(run.train[2].loss, 2);
    EXPECT_EQ(run.train[2].lr, 7);
    EXPECT_EQ(run.train[3].loss, 2);
    EXPECT_EQ(run.resumes, 1);
  }
}

TEST(TensorboardReader, AFolderWithoutALossIsRefused) {
  Folder dir;
  dir.write("x.tfevents.1", scalar(1, "accuracy", 1));
  try {
    read_run(dir.path());
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code, ExitCode::data);
    EXPECT_NE(std::string(error.what()).find("no loss in the event files"), std::string::npos);
  }
}

}  // namespace
}  // namespace octet::report
