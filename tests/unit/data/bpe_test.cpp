// Byte-level BPE piece by piece; agreement with the `tokenizers` package is tested in tests/cli/test_tokenizers.py.
#include "data/bpe_tokenizer.h"

#include <map>
#include <random>

#include "data/tokenizer.h"
#include "unit/data/bpe_fixture.h"
#include "unit/data/test_files.h"

namespace octet::data {
namespace {

struct Bpe : ::testing::Test {
  TinyTokenizer tiny;
  std::vector<std::string> encode(const std::string& text) {
    const BpeTokenizer tokenizer(parse_tokenizer_json(tiny.json(), "t.json"), "t.json");
    BpeTokenizer::Scratch scratch;
    std::vector<std::string> first;
    for (int round = 0; round < 2; ++round) {  // the second time from the cache
      scratch.ids.clear();
      tokenizer.encode(text, scratch);
      std::vector<std::string> tokens;
      for (size_t i = 0; i < scratch.ids.size(); ++i) tokens.emplace_back(tokenizer.bytes(scratch.ids.data()[i]));
      if (round == 0) first = tokens;
      EXPECT_EQ(tokens, first);
    }
    return first;
  }
  using Tokens = std::vector<std::string>;
};

TEST_F(Bpe, MergesByRankThenFromTheLeft) {
  tiny.merges = {"b c", "a b", "a a", "aa a"};
  EXPECT_EQ(encode("abc"), (Tokens{"a", "bc"}));
  EXPECT_EQ(encode("ab"), (Tokens{"ab"}));
  EXPECT_EQ(encode("aaaaa"), (Tokens{"aa", "aaa"}));  // both "a a" come before "aa a"
}

TEST_F(Bpe, LongWordsMergeLikeShortOnes) {
  tiny.merges = {"a a", "aa aa", "aaaa b", "b a"};
  for (size_t n : {63, 64, 65, 66, 67, 200}) {
    std::string text;
    for (size_t i = 0; i < n; ++i) text += i % 7 == 6 ? 'b' : 'a';
    // The definition: merge the leftmost pair of the smallest rank until there is none.
    Tokens expected;
    for (char c : text) expected.emplace_back(1, c);
    const std::map<std::pair<std::string, std::string>, int> ranks = {{{"a", "a"}, 0}, {{"aa", "aa"}, 1}, {{"aaaa", "b"}, 2}, {{"b", "a"}, 3}};
    while (true) {
      size_t best = 0;
      int rank = 99;
      for (size_t i = 0; i + 1 < expected.size(); ++i) {
        const auto found = ranks.find({expected[i], expected[i + 1]});
        if (found != ranks.end() && found->second < rank) rank = found->second, best = i;
      }
      if (rank == 99) break;
      expected[best] += expected[best + 1];
      expected.erase(expected.begin() + static_cast<ptrdiff_t>(best) + 1);
    }
    EXPECT_EQ(encode(text), expected) << n;
  }
}

TEST_F(Bpe, IgnoreMergesTakesWholeWords) {
  tiny.merges = {"a b", "b c"};
  tiny.tokens = {"abc"};
  EXPECT_EQ(encode("abc"), (Tokens{"ab", "c"}));
  tiny.ignore_merges = true;
  EXPECT_EQ(encode("abc"), (Tokens{"abc"}));
}

TEST_F(Bpe, MergesAsPairsAndLaterRankOfADoubledMerge) {
  tiny.merge_list = R"(["a b", ["b", "c"], "#version: 0.2"])";
  tiny.tokens = {"ab", "bc"};
  EXPECT_EQ(encode("abc"), (Tokens{"ab", "c"}));
  tiny.merge_list = R"(["a b", "b c", "a b"])";
  EXPECT_EQ(encode("abc"), (Tokens{"a", "bc"}));
}

TEST_F(Bpe, AddedTokens) {
  tiny.added = {{"<e>", true}, {"<e>>", true}};
  tiny.pre_tokenizer = R"({"type": "ByteLevel", "add_prefix_space": false, "use_regex": false})";
  EXPECT_EQ(encode("a<e>>b<e"), (Tokens{"a", "<e>>", "b", "<", "e"}));
  tiny.added = {{"x", false, true, false, false}};      // single word
  EXPECT_EQ(encode("ax x.x_"), (Tokens{"a", "x", " ", "x", ".", "x", "_"}));
  tiny.added = {{"x", false, false, true, true}};       // strips both sides
  EXPECT_EQ(encode("a \xE3\x80\x80x \nb").size(), 3u);
  tiny.added = {{"<e>", false, false, false, true}, {"  ", false, false, true, false}};   // what an earlier token swallowed is dropped, as the package does
  EXPECT_EQ(encode("a<e>  b"), (Tokens{"a", "<e>", "b"}));
  EXPECT_EQ(encode("a  b"), (Tokens{"a", "  ", "b"}));
}

TEST_F(Bpe, NormalizedAndRawAddedTokens) {
  tiny.normalizer = R"({"type": "NFC"})";
  tiny.added = {{"caf\xC3\xA9", false}};
  EXPECT_EQ(encode("cafe\xCC\x81"), (Tokens{"caf\xC3\xA9"}));
  tiny.added_normalized = false;
  EXPECT_NE(encode("cafe\xCC\x81"), (Tokens{"caf\xC3\xA9"}));
}

TEST(BpeCache, FindsWhatWasPutAndNothingElse) {
  BpeCache cache;
  std::vector<std::string> words;
  for (size_t n = 1; n <= BpeCache::most_bytes; ++n) {
    for (size_t changed = 0; changed < n; ++changed) {
      words.emplace_back(n, 'a');
      words.back()[changed] = 'b';
    }
  }
  for (size_t i = 0; i < words.size(); ++i) {
    const int32_t id = static_cast<int32_t>(i);
    EXPECT_EQ(cache.find(BpeCache::key(words[i])), nullptr) << words[i];
    cache.insert(BpeCache::key(words[i]), &id, 1);
    const auto* entry = cache.find(BpeCache::key(words[i]));
    ASSERT_NE(entry, nullptr);
    EXPECT_EQ(entry->ids[0], id);
  }
}

// The hand-written scanners against PCRE2 on the same patterns.
TEST(PreTokenizer, ScannersEqualTheirPatterns) {
  const UnicodeClasses classes;
  const std::vector<std::string> parts = {"a", "Z", "\xC3\xA9", "1", "\xC2\xBD", " ", "  ", "\n", "\r\n", "\t", "\xE3\x80\x80", "'", "'s", "'S", "'\xC5\xBF", "'ll", "'lL", "'re", "'vE",
                                          "!", "\xF0\x9F\x98\x80", "\xCC\x81", "\xC2\x85", "\xE1\xA0\x8E", "."};
  struct Case {
    std::string_view pattern;
    int digits;  // 0: GPT-2
  };
  SplitRegex::Scratch scratch;
  std::vector<SplitPiece> pieces;
  for (const auto& [pattern, digits] : {Case{gpt2_pattern, 0}, Case{llama3_pattern, 3}, Case{qwen2_pattern, 1}}) {
    const SplitRegex regex(pattern, classes, "pattern");
    std::mt19937 random(7);
    for (size_t round = 0; round < 4000; ++round) {
      std::string text;
      for (size_t i = 0; i <= round % 9; ++i) text += parts[random() % parts.size()];
      regex.split(text, scratch, pieces);
      std::vector<std::string> expected, words;
      for (const SplitPiece& p : pieces) expected.push_back(text.substr(p.begin, p.end - p.begin));
      const char* const end = text.data() + text.size();
      for (const char *at = text.data(), *next; at < end; at = next) {
        next = digits == 0 ? next_word_gpt2(classes, at, end) : next_word_cl100k(classes, digits, at, end);
        words.emplace_back(at, next);
      }
      ASSERT_EQ(words, expected) << text;
    }
  }
}

TEST(PreTokenizer, RefusedRegularExpressions) {
  const UnicodeClasses classes;
  for (const char* pattern : {"(", ")", "a**", "[", "[]", "[a", "a{", "a{1,2,3}", "^a", "a$", "\\b", "\\w", "\\1", "(?<name>a)", "(?i)a", "(?i:\\p{L})", "(?i:[a])", "(?i:ss)", "(?i:\xC3\x9F)",
                              "[a&&b]", "[[a]]", "\\p{Greek}", "\\p{L", "\\pL", "\\x{41}", "[b-a]", "[\\s-a]", "a{1}?", "a|", "a?", "(?=a)", "\\", "(*UCP)a", "a{9999999}", "\\Qa\\E"}) {
    SCOPED_TRACE(pattern);
    expect_error(ExitCode::config, "t.json: pre_tokenizer", [&] { SplitRegex(pattern, classes, "t.json: pre_tokenizer.pattern.Regex"); });
  }
}

TEST(Unicode, PinnedVersions) {
  const UnicodeClasses classes;
  EXPECT_EQ(classes.kind('a'), UnicodeClasses::letter);
  EXPECT_EQ(classes.kind(0x10D50), UnicodeClasses::letter);   // Garay, Unicode 16
  EXPECT_EQ(classes.kind(0x10D40), UnicodeClasses::number);
  EXPECT_EQ(classes.kind(0x11DE0), 0);                        // Unicode 17
  EXPECT_TRUE(classes.is_numeric(0x11DE0));
  EXPECT_EQ(classes.kind(0x180E), 0);                         // no space since Unicode 6.3
  EXPECT_EQ(classes.kind('\r'), UnicodeClasses::space | UnicodeClasses::newline);
  TextNormalizer nfc({NormalForm::nfc}), nfkc({NormalForm::nfkc});
  std::string buffer;
  EXPECT_EQ(nfc.apply("e\xCC\x81", buffer), "\xC3\xA9");
  EXPECT_EQ(nfkc.apply("\xE3\x8B\xBF", buffer), "\xE3\x8B\xBF");                            // U+32FF, Unicode 12.1
  EXPECT_EQ(nfc.apply("\xF0\x91\xA4\xB5\xF0\x91\xA4\xB0", buffer), "\xF0\x91\xA4\xB5\xF0\x91\xA4\xB0");  // U+11935 U+11930, Unicode 13
}

TEST(Unicode, InvalidUtf8) {
  const std::string r = "\xEF\xBF\xBD";
  EXPECT_EQ(replace_invalid_utf8("a\xFF\xC3\xA9\xE2\x82z\xF0\x9F\x98"), "a" + r + "\xC3\xA9" + r + "z" + r);
  EXPECT_EQ(replace_invalid_utf8("\xC0\xAF\xED\xA0\x80"), r + r + r + r + r);
  EXPECT_EQ(first_invalid_utf8("ab\xC3"), 2u);
  EXPECT_EQ(first_invalid_utf8("ab\xC3\xA9"), 4u);
  EXPECT_FALSE(valid_utf8("\xF4\x90\x80\x80"));
  const auto gaps = complement({{0, 9}, {0x20, 0x10FFFF}});
  ASSERT_EQ(gaps.size(), 1u);
  EXPECT_EQ(gaps[0].last, 0x1Fu);
}

}  // namespace
}  // namespace octet::data
