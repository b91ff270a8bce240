#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <regex>
#include <sstream>
#include <unistd.h>

#include "core/error.h"
#include "fixture.h"
#include "report/console.h"
#include "report/table.h"

namespace octet {
namespace {

TrainRecord record(int64_t step, double step_ms = 100) { return {step, step * 1000, 2.5, 1.25, 5e-4, 12345, step_ms}; }

struct Captured {
  std::ostringstream out;
  std::vector<std::string> log;
  LineSink sink() {
    return [this](std::string_view line) { log.emplace_back(line); };
  }
};

ConsoleOptions plain(int64_t total, int64_t interval) {
  ConsoleOptions options;
  options.total_steps = total;
  options.log_interval = interval;
  return options;
}

ConsoleOptions terminal(int64_t total, int width) {
  ConsoleOptions options = plain(total, 1000);
  options.width = [width] { return width; };
  options.redraw_interval_s = 0;
  return options;
}

TEST(Console, OneLineEveryIntervalWithoutATerminal) {
  Captured c;
  {
    Console console(c.out, plain(25, 10), c.sink());
    for (int i = 1; i <= 25; ++i) console.step(record(i), 0.123);
  }
  ASSERT_EQ(c.log.size(), 4u);  // first, 10, 20, last
  EXPECT_EQ(c.log[0], "step 1/25 | tokens 1.00K | loss 2.5000 | grad norm 1.2500 | lr 5.000e-04 | 12.3K tokens/s | 100.0 ms/step | MFU 12.3 %");
  EXPECT_EQ(c.log[1].substr(0, 10), "step 10/25");
  EXPECT_NE(c.log[1].find("| ETA 1.50 s"), std::string::npos) << c.log[1];
  EXPECT_EQ(c.out.str(), c.log[0] + "\n" + c.log[1] + "\n" + c.log[2] + "\n" + c.log[3] + "\n");
}

TEST(Console, EtaIsTheMedianWithoutTheFirstStep) {
  Captured c;
  Console console(c.out, plain(100, 1));
  EXPECT_FALSE(console.eta_s(0));
  console.step(record(1, 60000));
  EXPECT_FALSE(console.eta_s(1));
  for (int i = 2; i <= 10; ++i) console.step(record(i, i == 5 ? 90000 : 200));
  EXPECT_DOUBLE_EQ(console.eta_s(10).value(), 18);
  EXPECT_DOUBLE_EQ(console.eta_s(100).value(), 0);
  for (int i = 11; i <= 200; ++i) console.step(record(i, 400));  // old times leave the window
  EXPECT_DOUBLE_EQ(console.eta_s(90).value(), 4);
}

TEST(Console, TheBarIsRedrawnInPlaceAndEndsWithANewline) {
  Captured c;
  {
    Console console(c.out, terminal(4, 100), c.sink());
    for (int i = 1; i <= 3; ++i) console.step(record(i));
    EXPECT_EQ(c.out.str().find('\n'), std::string::npos);
    console.message("saved checkpoint");
    console.step(record(4));
    console.finish();
  }
  const std::string text = c.out.str();
  EXPECT_NE(text.find("\r[=========> "), std::string::npos) << text;
  EXPECT_NE(text.find("] "), std::string::npos);
  EXPECT_NE(text.find(" 75% 3/4  loss 2.5000  ETA 0.10 s  12.3K tokens/s  lr 5.00e-04\x1b[K"), std::string::npos) << text;
  EXPECT_NE(text.find("\r\x1b[Ksaved checkpoint\n\r["), std::string::npos) << text;
  EXPECT_NE(text.find("100% 4/4"), std::string::npos);
  EXPECT_EQ(text.back(), '\n');
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2);
  EXPECT_EQ(c.log, (std::vector<std::string>{c.log[0], "saved checkpoint", c.log[2]}));
}

TEST(Console, TheBarFitsAnyWidth) {
  for (int width = 1; width <= 200; ++width) {
    Captured c;
    Console console(c.out, terminal(1000, width));
    console.step(record(500), 0.5);
    const std::string text = c.out.str();
    EXPECT_LT(text.size() - std::string("\r\x1b[K").size(), static_cast<size_t>(std::max(width, 1))) << width;
    if (width > 30) {
      EXPECT_NE(text.find(" 50% 500/1000"), std::string::npos) << text;
    }
  }
}

TEST(Console, MessagesOfSeveralLinesGoToTheLogLineByLine) {
  Captured c;
  Console console(c.out, plain(1, 1), c.sink());
  console.message("a\nb\n");
  console.valid(3, 1.5);
  console.valid(3, 1.25, "wiki");
  EXPECT_EQ(c.log, (std::vector<std::string>{"a", "b", "step 3/1 | validation loss 1.5000", "step 3/1 | validation loss wiki 1.2500"}));
  EXPECT_EQ(c.out.str(), "a\nb\nstep 3/1 | validation loss 1.5000\nstep 3/1 | validation loss wiki 1.2500\n");
}

ConsoleOptions megatron(int64_t total, int64_t interval) {
  ConsoleOptions options = terminal(total, 200);  // lines all the same
  options.log_interval = interval;
  options.megatron = MegatronLine{16, 256, 1e9};
  return options;
}

std::string behind_time(const std::string& line) {
  EXPECT_TRUE(std::regex_search(line, std::regex(R"(^ \[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}\] iteration )"))) << line;
  return line.substr(line.find(']') + 1);
}

TEST(Console, MegatronsLineHasItsFieldsInItsOrder) {
  Captured c;
  Console console(c.out, megatron(300, 5), c.sink());
  console.step({5, 80 * 256, 5.123456, 1.234, 1e-4, 4096e3, 123.4});
  ASSERT_EQ(c.log.size(), 1u);
  EXPECT_EQ(behind_time(c.log[0]),
            " iteration        5/     300 | consumed samples:           80 | elapsed time per iteration (ms): 123.4 | throughput per GPU (TFLOP/s/GPU): 33.2 | learning rate: "
            "1.000000E-04 | global batch size:    16 | lm loss: 5.123456E+00 | loss scale: 1.0 | grad norm: 1.234 | number of skipped iterations:   0 | number of nan iterations: "
            "  0 |");
  EXPECT_EQ(c.out.str(), c.log[0] + "\n");
}

TEST(Console, MegatronsLineIsAboutTheStepsSinceTheLastOne) {
  Captured c;
  Console console(c.out, megatron(300, 4), c.sink());
  const auto step = [&](int64_t number, double loss, double ms, bool skipped) {
    TrainRecord r{number, number * 4096, loss, 1, 1e-4, 1, ms};
    r.skipped = skipped;
    console.step(r);
  };
  step(4, 9.0, 100, false);
  step(5, 2.0, 100, false);
  step(6, 100.0, 200, true);
  step(7, NAN, 300, true);
  step(8, 4.0, 400, false);
  for (int64_t s = 9; s <= 12; ++s) step(s, NAN, 100, true);
  ASSERT_EQ(c.log.size(), 3u);
  EXPECT_NE(c.log[1].find("elapsed time per iteration (ms): 250.0 |"), std::string::npos) << c.log[1];
  EXPECT_NE(c.log[1].find("lm loss: 3.000000E+00 |"), std::string::npos) << c.log[1];
  EXPECT_NE(c.log[1].find("number of skipped iterations:   2 | number of nan iterations:   1 |"), std::string::npos) << c.log[1];
  EXPECT_EQ(c.log[2].find("lm loss"), std::string::npos) << c.log[2];
  EXPECT_NE(c.log[2].find("number of skipped iterations:   4 | number of nan iterations:   4 |"), std::string::npos) << c.log[2];
}

TEST(Console, MegatronsValidationLine) {
  Captured c;
  Console console(c.out, megatron(300, 1), c.sink());
  console.valid(10, 2.0);
  console.valid(10, 30.0, "wiki");
  ASSERT_EQ(c.log.size(), 6u);
  EXPECT_EQ(c.log[1], " validation loss at iteration 10 | lm loss value: 2.000000E+00 | lm loss PPL: 7.389056E+00 | ");
  EXPECT_EQ(c.log[0], std::string(c.log[1].size() + 1, '-'));
  EXPECT_EQ(c.log[2], c.log[0]);
  EXPECT_EQ(c.log[4], " validation-wiki loss at iteration 10 | lm loss value: 3.000000E+01 | lm loss PPL: 4.851652E+08 | ");  // e^20 at most
}

TEST(Console, APipeIsNoTerminal) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  EXPECT_EQ(terminal_width(ends[1]), 0);
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST(LogFile, AppendsLinesWithTheirTime) {
  test::TempDir dir;
  LogFile(dir / "log.txt").write("first");
  LogFile(dir / "log.txt").write("second");
  const std::string text = test::read_text(dir / "log.txt");
  ASSERT_EQ(text.size(), std::string("2026-01-01 00:00:00 first\n2026-01-01 00:00:00 second\n").size());
  EXPECT_EQ(text.substr(19, 7), " first\n");
  EXPECT_EQ(text.substr(4, 1) + text.substr(7, 1) + text.substr(13, 1), "--:");
  EXPECT_THROW(LogFile(dir / "absent" / "log.txt"), Error);
  EXPECT_THROW(LogFile("/dev/full").write("x"), Error);
}

TEST(Table, AlignsColumnsAndCountsCharactersNotBytes) {
  Table table({{"name", Table::Align::left}, {"size"}});
  table.add_row({"a\xC3\xA9", "1"});
  table.add_row({"longer", "12345"});
  EXPECT_EQ(table.text(), "name     size\n------  -----\na\xC3\xA9          1\nlonger  12345\n");
  EXPECT_THROW(table.add_row({"one"}), Error);
}

TEST(Table, NamesCannotSteerTheTerminal) {
  EXPECT_EQ(terminal_text("a\x1b[31m\n\x7f"), "a?[31m??");
  EXPECT_EQ(terminal_text("\xff\xc3\xa9\xc0\x80\xed\xa0\x80"), "?\xc3\xa9?????");
  EXPECT_EQ(terminal_text("\xC2\x9B"
                          "1m\xE2\x80\xAE"
                          "x\xE2\x81\xA6"),
            "?1m?x?");
  EXPECT_EQ(terminal_text("\xE2\x82\xAC \xF0\x9F\x98\x80 \xF4\x90\x80\x80"), "\xE2\x82\xAC \xF0\x9F\x98\x80 ????");
  EXPECT_EQ(terminal_text("cut \xE2\x82"), "cut ??");
}

TEST(HumanUnits, RoundWithoutJumpingAUnit) {
  EXPECT_EQ(human_count(0), "0");
  EXPECT_EQ(human_count(950), "950");
  EXPECT_EQ(human_count(1.5), "1.50");
  EXPECT_EQ(human_count(999.6), "1.00K");
  EXPECT_EQ(human_count(12345), "12.3K");
  EXPECT_EQ(human_count(999999), "1.00M");
  EXPECT_EQ(human_count(-2e9), "-2.00G");
  EXPECT_EQ(human_count(NAN), "?");
  EXPECT_EQ(human_bytes(512), "512 B");
  EXPECT_EQ(human_bytes(1536), "1.50 KiB");
  EXPECT_EQ(human_bytes((uint64_t{1} << 30) * 2), "2.00 GiB");
  EXPECT_EQ(human_bytes((uint64_t{1} << 20) - 1), "1.00 MiB");
  EXPECT_EQ(human_bytes(UINT64_MAX), "16.00 EiB");
  EXPECT_EQ(human_duration(0.42), "0.42 s");
  EXPECT_EQ(human_duration(12.3), "12 s");
  EXPECT_EQ(human_duration(59.7), "1m 00s");
  EXPECT_EQ(human_duration(185), "3m 05s");
  EXPECT_EQ(human_duration(7620), "2h 07m");
  EXPECT_EQ(human_duration(86400 * 3 + 3600 * 4), "3d 04h");
  EXPECT_EQ(human_duration(-1), "?");
  EXPECT_EQ(human_duration(INFINITY), "?");
}

}  // namespace
}  // namespace octet
