// Counts with unit suffixes: their values, and where they are read.
#include <regex>

#include "config/units.h"
#include "helpers.h"

namespace octet::test {
namespace {

TEST(Units, ExactCounts) {
  const struct {
    const char* text;
    int64_t value;
  } cases[] = {{"32k", 32000},         {"32K", 32000},           {"4Ki", 4096},          {"1.5T", 1'500'000'000'000}, {"2M", 2'000'000},
               {"3G", 3'000'000'000},  {"3B", 3'000'000'000},    {"1Mi", 1048576},       {"1Gi", 1073741824},         {"0k", 0},
               {"0.5k", 500},          {"0.001k", 1},            {"1.50Ki", 1536},       {"007k", 7000},
               {"8589934591Gi", 9223372035781033984}};
  for (const auto& c : cases) {
    const UnitCount count = parse_unit_count(c.text);
    EXPECT_EQ(count.fault, UnitFault::none) << c.text;
    EXPECT_EQ(count.value, c.value) << c.text;
  }
}

TEST(Units, Faults) {
  for (const char* text : {"", "k", "32", "1.5", "32 k", " 32k", "32k ", "-1k", "+1k", "1e3k", "1.k", ".5k", "1..5k", "1.5.0k", "32kk", "32m", "32ki", "32KI", "32Ti", "0x1k", "1,5k", "k32", "32k\n"}) {
    EXPECT_EQ(parse_unit_count(text).fault, UnitFault::syntax) << text;
  }
  for (const char* text : {"0.0001k", "1.0005k", "0.3Ki", "1.0000000000001T"}) EXPECT_EQ(parse_unit_count(text).fault, UnitFault::fraction) << text;
  for (const char* text : {"9223373T", "9999999999G", "1234567890123456789k", "0.0000000000000000001T", "8589934592Gi"}) {
    EXPECT_EQ(parse_unit_count(text).fault, UnitFault::too_large) << text;
  }
}

// The schema's pattern and the parser agree on what has the form of a count.
TEST(Units, PatternIsTheSyntax) {
  const std::regex pattern(unit_count_pattern);
  const std::string alphabet = "0.15kKMGBTi-e ";
  uint32_t state = 1;
  for (int n = 0; n < 20000; ++n) {
    std::string text;
    for (uint32_t length = n % 7; text.size() < length;) {
      state = state * 1664525 + 1013904223;
      text += alphabet[(state >> 16) % alphabet.size()];
    }
    EXPECT_EQ(std::regex_match(text, pattern), parse_unit_count(text).fault != UnitFault::syntax) << text;
  }
}

TEST(Units, FieldsThatTakeThem) {
  const RunConfig c = from_json(patched(R"({"run": {"steps": "2k"}, "data": {"seq_len": "4Ki"}, "ckpt": {"interval": "0.1k"}, "eval": {"samples": "1K"}})"));
  EXPECT_EQ(c.run.steps, 2000);
  EXPECT_EQ(c.data.seq_len, 4096);
  EXPECT_EQ(c.ckpt.interval, 100);
  EXPECT_EQ(c.eval.samples, 1000);
  EXPECT_EQ(to_json(c)["run"]["steps"], 2000);   // stored as a number
  ConfigTree tree{patched(R"({"run": {"steps": null}})"), {}};
  tree.set_expression("run.tokens=1.5T");
  EXPECT_EQ(from_json(tree.values).run.tokens, 1'500'000'000'000);
}

TEST(Units, Errors) {
  EXPECT_EQ(read_error(R"({"run": {"steps": "many"}})"),
            "run.steps must be an integer or one with a unit suffix, not \"many\" (write it like 32000, \"32k\", \"1.5T\" or \"4Ki\")");
  EXPECT_EQ(read_error(R"({"run": {"steps": "1.0005k"}})"), "run.steps must be a whole number, which \"1.0005k\" is not");
  EXPECT_EQ(read_error(R"({"run": {"steps": "9999999T"}})"), "run.steps is too large: \"9999999T\"");
  EXPECT_EQ(read_error(R"({"run": {"steps": "2G"}})"), "run.steps must be at least 0 and at most 1000000000, not \"2G\"");
  EXPECT_EQ(read_error(R"({"model": {"hidden_size": "1k"}})"),
            "model.hidden_size must be an integer, not \"1k\" (this field takes no unit suffix: write 1000)");
  EXPECT_EQ(read_error(R"({"run": {"seed": "1k"}})"), "run.seed must be an integer, not \"1k\" (this field takes no unit suffix: write 1000)");
  EXPECT_EQ(read_error(R"({"optim": {"lr": "1k"}})"), "optim.lr must be a number, not \"1k\" (this field takes no unit suffix: write 1000)");
}

}  // namespace
}  // namespace octet::test
