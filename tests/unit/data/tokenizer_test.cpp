// tokenizer.json, the Tokenizer class, PREFIX.meta.json.
#include "data/tokenizer.h"

#include "data/token_meta.h"
#include "unit/data/bpe_fixture.h"
#include "unit/data/test_files.h"

namespace octet::data {
namespace {

void refuse(const TinyTokenizer& tiny, const std::string& part) {
  expect_error(ExitCode::config, "t.json: " + part, [&] { parse_tokenizer_json(tiny.json(), "t.json"); });
}

TEST(TokenizerJson, Parts) {
  TinyTokenizer tiny;
  tiny.merges = {"a b"};
  tiny.added = {{"<|endoftext|>", true}};
  tiny.normalizer = R"({"type": "Sequence", "normalizers": [{"type": "NFD"}, {"type": "NFKC"}]})";
  tiny.pre_tokenizer = R"({"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": "\\s+"}, "behavior": "Removed", "invert": false},
    {"type": "Split", "pattern": {"String": "x"}, "behavior": "MergedWithNext", "invert": true}, {"type": "Digits", "individual_digits": true},
    {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false}]})";
  const TokenizerJson json = parse_tokenizer_json(tiny.json(), "t.json");
  EXPECT_EQ(json.normalizer, (std::vector{NormalForm::nfd, NormalForm::nfkc}));
  ASSERT_EQ(json.splits.size(), 3u);
  EXPECT_EQ(std::get<SplitStep>(json.splits[0]).pattern, "\\s+");
  EXPECT_FALSE(std::get<SplitStep>(json.splits[1]).is_regex);
  EXPECT_TRUE(std::get<DigitsStep>(json.splits[2]).individual);
  EXPECT_TRUE(json.byte_level.add_prefix_space && json.byte_level.use_regex);
  EXPECT_EQ(json.merges.at(0).result, 256);
  EXPECT_EQ(json.added_tokens.at(0).id, 257);
  EXPECT_EQ(json.vocab_size, 258);
}

TEST(TokenizerJson, ByteLevelAlphabet) {
  std::string bytes;
  for (int b = 0; b < 256; ++b) {
    ASSERT_TRUE(byte_level_decode(byte_level_char(static_cast<unsigned char>(b)), bytes));
    EXPECT_EQ(bytes, std::string(1, static_cast<char>(b)));
  }
  EXPECT_EQ(byte_level_char(' '), "\xC4\xA0");
  EXPECT_FALSE(byte_level_decode("\xE2\x96\x81", bytes));
}

TEST(TokenizerJson, UnsupportedPartsAreNamed) {
  const auto with = [](const std::string& pre_tokenizer, const std::string& normalizer = "null") {
    TinyTokenizer tiny;
    tiny.pre_tokenizer = pre_tokenizer;
    tiny.normalizer = normalizer;
    return tiny;
  };
  const std::string byte_level = R"({"type": "ByteLevel", "add_prefix_space": false})";
  refuse(with("null"), "pre_tokenizer: has no ByteLevel step");
  refuse(with(R"({"type": "Metaspace"})"), "pre_tokenizer.type: \"Metaspace\" is not supported");
  refuse(with(R"({"type": "Sequence", "pretokenizers": [)" + byte_level + R"(, {"type": "Digits", "individual_digits": true}]})"),
         "pre_tokenizer.pretokenizers[1]: a step behind ByteLevel");
  refuse(with(R"({"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": ""}, "behavior": "Isolated", "invert": false}]})"),
         "pre_tokenizer.pretokenizers[0].pattern.Regex: is empty");
  refuse(with(R"({"type": "Split", "pattern": {"Regex": "a"}, "behavior": "isolated", "invert": false})"), "pre_tokenizer.behavior: \"isolated\" is no behavior");
  refuse(with(R"({"type": "Split", "pattern": {"Regex": "a", "String": "b"}, "behavior": "Isolated", "invert": false})"), "pre_tokenizer.pattern: must have one");
  refuse(with(R"({"type": "ByteLevel", "add_prefix_space": 1})"), "pre_tokenizer.add_prefix_space: must be true or false");
  refuse(with(R"({"type": "ByteLevel", "add_prefix_space": true, "speed": 1})"), "pre_tokenizer: unknown key \"speed\"");
  refuse(with(byte_level, R"({"type": "Lowercase"})"), "normalizer.type: \"Lowercase\" is not supported");
  refuse(with(byte_level, R"({"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Strip"}]})"), "normalizer.normalizers[1].type: \"Strip\"");
  std::string deep = byte_level;
  for (int i = 0; i < 12; ++i) deep = R"({"type": "Sequence", "pretokenizers": [)" + deep + "]}";
  refuse(with(deep), "pre_tokenizer.pretokenizers[0]");
  TinyTokenizer tiny;
  tiny.model_extra = R"("type": "BPE",)";
  refuse(tiny, "model: the key 'type' occurs more than once");
  tiny.model_extra = R"("speed": 3,)";
  refuse(tiny, "model: unknown key \"speed\"");
  tiny.model_extra.clear();
  tiny.root_extra = R"("extra": {},)";
  refuse(tiny, "unknown key \"extra\"");
}

TEST(TokenizerJson, ManyStepsAreRefused) {
  const auto repeated = [](const std::string& step, int times) {
    std::string list;
    for (int i = 0; i < times; ++i) list += step + ", ";
    return list;
  };
  TinyTokenizer many;
  const std::string last = many.pre_tokenizer;
  const auto with = [&](int splits, int forms) {
    many.pre_tokenizer = R"({"type": "Sequence", "pretokenizers": [)" + repeated(R"({"type": "Digits", "individual_digits": true})", splits) + last + "]}";
    many.normalizer = R"({"type": "Sequence", "normalizers": [)" + repeated(R"({"type": "NFC"})", forms) + R"({"type": "NFC"}]})";
    return many;
  };
  EXPECT_EQ(parse_tokenizer_json(with(64, 63).json(), "t.json").splits.size(), 64u);
  refuse(with(65, 0), "pre_tokenizer.pretokenizers[64]: is more than 64 steps");
  refuse(with(0, 64), "normalizer.normalizers[64]: is more than 64 steps");
}

TEST(TokenizerJson, HostileVocabularies) {
  TinyTokenizer tiny;
  for (const auto& [extra, part] : std::vector<std::pair<std::string, std::string>>{
           {R"(, "q2": 3)", "model.vocab: two tokens have the id 3"},
           {R"(, "q2": -1)", "model.vocab: the value of \"q2\" is no token id"},
           {R"(, "q2": 1.5)", "model.vocab: the value of \"q2\" is no token id"},
           {R"(, "q2": 2147483647)", "model.vocab: id 2147483647 is out of proportion"},
           {R"(, "q2": 99999999999)", "model.vocab: the value of \"q2\" is no token id"},
           {R"(, "a": 300)", "model.vocab: the token \"a\" occurs twice"}}) {
    tiny.vocab_extra = extra;
    refuse(tiny, part);
  }
  tiny.vocab_extra.clear();
  for (const auto& [list, part] : std::vector<std::pair<std::string, std::string>>{
           {R"(["a b c"])", "model.merges: entry 0 must be two tokens"}, {R"(["ab"])", "model.merges: entry 0 must be two tokens"},
           {R"([["a"]])", "model.merges: entry 0 must be a string or a pair"}, {R"([7])", "model.merges: entry 0 must be a string or a pair"},
           {R"(["a b"])", "model.merges: entry 0 names \"ab\", which is not in model.vocab"}, {R"({})", "model.merges: must be an array"}}) {
    tiny.merge_list = list;
    refuse(tiny, part);
  }
  const std::string good = TinyTokenizer().json();
  const auto error = [](const std::string& text) { return error_of([&] { parse_tokenizer_json(text, "t.json"); }); };
  for (size_t size = 0; size < good.size(); size += 97) EXPECT_EQ(error(good.substr(0, size)).code, ExitCode::config);
  EXPECT_EQ(error(std::string(100000, '[')).code, ExitCode::config);
  EXPECT_EQ(error("[]").code, ExitCode::config);
  std::string lacking = good;
  lacking.replace(lacking.find("\"a\": 97"), 7, "\"aq\": 97");
  EXPECT_NE(std::string(error(lacking).what()).find("model.vocab: has no token for the byte 0x61"), std::string::npos);
}

TEST(TokenizerJson, AddedTokenIds) {
  TinyTokenizer tiny;
  tiny.added = {{"<e>", true}, {"<e>", true}};
  refuse(tiny, "added_tokens[1].content: \"<e>\" is there twice");
  tiny.added = {{"<e>", true}};
  tiny.vocab_extra = R"(, "q2": 400)";  // a hole: the package counts tokens
  tiny.tokens = {};
  std::string text = tiny.json();
  refuse(tiny, "added_tokens[0].id: is 256, but the tokenizers package gives this token 257");
}

TEST(Tokenizer, OpensByName) {
  TemporaryDirectory directory;
  TinyTokenizer tiny;
  tiny.merges = {"a b"};
  tiny.added = {{"<eos>", true}, {"<other>", true}};
  write_bytes(directory / "t.json", tiny.json());
  const std::string name = "hf:" + (directory / "t.json");
  const Tokenizer bpe = Tokenizer::open(name);
  EXPECT_EQ(bpe.kind(), "hf-bpe");
  EXPECT_EQ(bpe.file_name(), "t.json");
  EXPECT_EQ(bpe.vocab_size(), 259);
  EXPECT_EQ(bpe.eod(), 257);
  EXPECT_EQ(Tokenizer::open(name, "<other>").eod(), 258);
  Tokenizer::Scratch scratch;
  const auto ids = bpe.encode("ab<other>", scratch);
  EXPECT_EQ((std::vector<int32_t>(ids.begin(), ids.end())), (std::vector<int32_t>{256, 258}));
  EXPECT_EQ(bpe.decode(std::vector<int32_t>{256, 257, 258}), "ab<other>");
  expect_error(ExitCode::data, "id 259 is none", [&] { bpe.decode(std::vector<int32_t>{259}); });
  expect_error(ExitCode::config, "has no added token '<x>'", [&] { Tokenizer::open(name, "<x>"); });
  const Tokenizer byte = Tokenizer::open("byte");
  EXPECT_EQ(byte.vocab_size(), 257);
  EXPECT_EQ(byte.file_xxh64(), "ef46db3751d8e999");  // XXH64 of nothing
  for (const char* wrong : {"bite", "hf:", "sentencepiece:", "hf", ""}) expect_error(ExitCode::config, "is no tokenizer", [&] { Tokenizer::open(wrong); });
  expect_error(ExitCode::config, "--eod-token", [&] { Tokenizer::open("byte", "x"); });
  write_bytes(directory / "bad.model", "\x0a\x05nonsense that is no protobuf");
  expect_error(ExitCode::config, "bad.model: no SentencePiece model", [&] { Tokenizer::open("sentencepiece:" + (directory / "bad.model")); });
}

TEST(Tokenizer, SentencePieceTrainAndEncode) {
  TemporaryDirectory directory;
  std::string text;
  for (int i = 0; i < 400; ++i) {
    std::string word;
    for (int n = i * 7919 + 11; n > 0; n /= 17) word += static_cast<char>('a' + n % 17);
    text += "the cat " + word + " sat on the mat " + std::to_string(i) + " \xC3\xA9t\xC3\xA9\n";
  }
  write_bytes(directory / "t.txt", text);
  for (const char* type : {"bpe", "unigram"}) {
    TrainTokenizerOptions train;
    train.inputs = {directory / "t.txt"};
    train.model_type = type;
    train.vocab_size = 330;
    const auto result = train_sentencepiece(train);
    EXPECT_EQ(result.lines, 400);
    EXPECT_EQ(train_sentencepiece(train).model, result.model);
    write_bytes(directory / "m.model", result.model);
    const Tokenizer tokenizer = Tokenizer::open("sentencepiece:" + (directory / "m.model"));
    EXPECT_EQ(tokenizer.vocab_size(), 330);
    EXPECT_EQ(tokenizer.eod(), 2);
    Tokenizer::Scratch scratch;
    const std::string some = "the  cat \xE4\xB8\xAD 42";  // with characters outside the corpus: bytes
    const auto ids = tokenizer.encode(some, scratch);
    EXPECT_EQ(tokenizer.decode(ids), some);
  }
  TrainTokenizerOptions large;
  large.inputs = {directory / "t.txt"};
  large.vocab_size = 100000;
  expect_error(ExitCode::config, "SentencePiece refuses to train", [&] { train_sentencepiece(large); });
}

TEST(TokenMeta, RoundTripAndStrictness) {
  const TokenMeta meta{"hf-bpe", "t.json", "0123456789abcdef", 50257, 50256, 3, 99, "fedcba9876543210"};
  const std::string text = to_json(meta);
  const TokenMeta back = parse_token_meta(text, "m");
  EXPECT_EQ(back.build_xxh64, meta.build_xxh64);
  TokenMeta earlier = meta;   // version 1 began without it
  earlier.build_xxh64.clear();
  EXPECT_EQ(to_json(earlier).find("build_xxh64"), std::string::npos);
  EXPECT_EQ(parse_token_meta(to_json(earlier), "m").build_xxh64, "");
  EXPECT_EQ(to_json(back), text);
  EXPECT_EQ(back.eod_id, 50256);
  TokenMeta none = meta;
  none.eod_id.reset();
  EXPECT_FALSE(parse_token_meta(to_json(none), "m").eod_id);
  const std::vector<std::pair<std::string, std::string>> changes = {
      {"octet-tokens", "tokens"}, {"\"version\": 1", "\"version\": 2"}, {"hf-bpe", "wordpiece"}, {"0123456789abcdef", "0123"}, {"50257", "0"}, {"50257", "-5"},
      {"50257", "50256"}, {"\"documents\"", "\"docs\""}, {"99", "99.5"}, {"99", "[99]"}, {"\"tokens\": 99", "\"tokens\": 99, \"tokens\": 99"}, {"}", ""}};
  for (const auto& [from, to] : changes) {
    std::string changed = text;
    changed.replace(changed.find(from), from.size(), to);
    expect_error(ExitCode::data, "m: ", [&] { parse_token_meta(changed, "m"); });
  }
}

}  // namespace
}  // namespace octet::data
