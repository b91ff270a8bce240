#include "data/build.h"

#include "data/tokenizer.h"
#include "unit/data/test_files.h"

namespace octet::data {
namespace {

struct Build : ::testing::Test {
  TemporaryDirectory directory;
  BuildOptions options;

  Build() { options.prefix = directory / "out"; }
  void input(const std::string& name, const std::string& bytes) {
    write_bytes(directory / name, bytes);
    options.inputs.push_back(directory / name);
  }
  // Builds and gives the documents back as text, "|" for EOD.
  std::vector<std::string> documents() {
    const BuildResult result = build_token_files(options);
    const auto set = IndexedDataset::open(options.prefix);
    EXPECT_EQ(result.documents, set.documents());
    EXPECT_EQ(result.tokens, set.tokens());
    EXPECT_EQ(set.type(), TokenType::u16);
    std::vector<std::string> all;
    for (int64_t i = 0; i < set.documents(); ++i) {
      std::vector<int32_t> tokens(static_cast<size_t>(set.length(i)));
      set.read(i, 0, set.length(i), tokens.data());
      std::string text;
      for (int32_t id : tokens) text.push_back(id == ByteTokenizer::eod ? '|' : static_cast<char>(id));
      all.push_back(text);
    }
    std::filesystem::remove(options.prefix + ".idx");
    std::filesystem::remove(options.prefix + ".bin");
    return all;
  }
  void refuse(ExitCode code, const std::string& part) {
    expect_error(code, part, [&] { build_token_files(options); });
    for (const std::string& name : directory.names()) EXPECT_FALSE(name.starts_with("out")) << name;
  }
  using Documents = std::vector<std::string>;
};

TEST(Tokenizer, Bytes) {
  std::vector<int32_t> tokens;
  std::string all;
  for (int i = 0; i < 256; ++i) all.push_back(static_cast<char>(i));
  ByteTokenizer::encode(all, tokens);
  for (int i = 0; i < 256; ++i) EXPECT_EQ(tokens[static_cast<size_t>(i)], i);
  tokens.push_back(ByteTokenizer::eod);
  EXPECT_EQ(ByteTokenizer::decode(tokens), all);
}

TEST_F(Build, WholeFileIsOneDocument) {
  input("a.txt", "one\n\ntwo\r\n");
  input("b.txt", "three");
  EXPECT_EQ(documents(), (Documents{"one\n\ntwo\r\n|", "three|"}));
  options.append_eod = false;
  EXPECT_EQ(documents(), (Documents{"one\n\ntwo\r\n", "three"}));
}

TEST_F(Build, BlankLinesPartDocuments) {
  options.split = DocumentSplit::blank_lines;
  input("a.txt", "\n\none\ntwo\n\n\n\nthree\r\n\r\nfour\n \nfive");
  input("b.txt", "six\n\n");
  input("c.txt", "\r\n\n");
  input("d.txt", "\rx\n\n\r");
  EXPECT_EQ(documents(), (Documents{"one\ntwo\n|", "three\r\n|", "four\n \nfive|", "six\n|", "\rx\n|", "\r|"}));
}

TEST_F(Build, BlankLinesAcrossPiecesOfTheFile) {
  // Documents whose borders fall at, before and behind the reader's 256 KiB pieces, for both line ends.
  options.split = DocumentSplit::blank_lines;
  const std::string end_of_line[] = {"\n", "\r\n"};
  Documents expected;
  int files = 0;
  for (const std::string& end : end_of_line) {
    for (int shift = -3; shift <= 3; ++shift) {
      const std::string first(static_cast<size_t>((1 << 18) + shift), 'x'), second(300000, 'y');
      input("f" + std::to_string(files++), first + end + end + second);
      expected.push_back(first + end + "|");
      expected.push_back(second + "|");
    }
  }
  EXPECT_EQ(documents(), expected);
}

TEST_F(Build, Jsonl) {
  input("a.jsonl", "{\"text\": \"one\\n\\u00e9\", \"id\": [1, {\"text\": \"inner\"}]}\n{\"text\":\"\"}\r\n{\"url\":1,\"text\":\"two\"}");
  EXPECT_EQ(documents(), (Documents{"one\n\xc3\xa9|", "two|"}));
  EXPECT_EQ(build_token_files(options).empty_documents, 1);
}

TEST_F(Build, FormatAndKey) {
  input("a.txt", "{\"body\": \"one\"}\n");
  EXPECT_EQ(documents(), (Documents{"{\"body\": \"one\"}\n|"}));
  options.format = TextFormat::jsonl;
  options.json_key = "body";
  EXPECT_EQ(documents(), (Documents{"one|"}));
  options.inputs.clear();
  input("b.json", "{\"body\": \"two\"}\n");
  options.format = TextFormat::automatic;
  EXPECT_EQ(documents(), (Documents{"two|"}));
  options.format = TextFormat::text;
  EXPECT_EQ(documents(), (Documents{"{\"body\": \"two\"}\n|"}));
}

TEST_F(Build, LongJsonLines) {
  const std::string body(700000, 'z');
  input("a.jsonl", "{\"text\": \"" + body + "\"}\n{\"text\": \"end\"}\n");
  EXPECT_EQ(documents(), (Documents{body + "|", "end|"}));
}

TEST_F(Build, MalformedJsonlNamesFileAndLine) {
  const std::string good = "{\"text\": \"fine\"}\n";
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"{\"text\": \"cut", "not valid JSON"},
      {"{\"text\": \"a\"} trailing", "not valid JSON"},
      {"{'text': 1}", "not valid JSON"},
      {std::string("{\"text\": \"\xff\xfe\"}"), "not valid JSON"},
      {std::string("{\"te\0xt\": 1}", 12), "not valid JSON"},
      {"[\"text\"]", "not a JSON object but array"},
      {"7", "not a JSON object but number"},
      {"{\"Text\": \"a\"}", "has no key 'text'"},
      {"{\"text\": 5}", "the value of 'text' is no string but number"},
      {"{\"text\": null}", "the value of 'text' is no string but null"},
      {"{\"text\": \"a\", \"text\": \"b\"}", "the key 'text' occurs 2 times"},
      {"", "an empty line"},
      {"\r", "an empty line"},
      {"  ", "not valid JSON"},
      {std::string(100000, '['), "not valid JSON"},
  };
  for (const auto& [line, message] : bad) {
    options.inputs.clear();
    input("bad.jsonl", good + line + "\n" + good);
    refuse(ExitCode::data, "bad.jsonl:2: " + message);
  }
}

TEST_F(Build, EmptyCorpus) {
  input("a.txt", "");
  refuse(ExitCode::data, "the corpus is empty");
  options.split = DocumentSplit::blank_lines;
  input("b.txt", "\n\r\n\n");
  refuse(ExitCode::data, "the corpus is empty");
  input("c.jsonl", "{\"text\": \"\"}\n");
  refuse(ExitCode::data, "the corpus is empty");
}

TEST_F(Build, MissingInputs) {
  input("a.txt", "text");
  options.inputs.push_back(directory / "none.txt");
  refuse(ExitCode::data, "none.txt: cannot open: No such file");
  std::filesystem::create_directory(directory / "folder");
  options.inputs.back() = directory / "folder";
  refuse(ExitCode::data, "folder: not a regular file");
}

TEST_F(Build, ExistingOutputIsKept) {
  input("a.txt", "text");
  build_token_files(options);
  const std::string idx = read_bytes(options.prefix + ".idx"), bin = read_bytes(options.prefix + ".bin");
  options.append_eod = false;
  expect_error(ExitCode::data, "exists already", [&] { build_token_files(options); });
  EXPECT_EQ(read_bytes(options.prefix + ".idx"), idx);
  EXPECT_EQ(read_bytes(options.prefix + ".bin"), bin);
}

}  // namespace
}  // namespace octet::data
