#include "data/build.h"

#include <zlib.h>
#include <zstd.h>

#include "data/build_journal.h"
#include "data/build_reader.h"
#include "data/token_meta.h"
#include "data/tokenizer.h"
#include "unit/data/bpe_fixture.h"
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
    EXPECT_EQ(read_token_meta(options.prefix)->documents, result.documents);
    remove_outputs();
    return all;
  }
  void remove_outputs() {
    for (const char* extension : {".idx", ".bin", ".meta.json"}) std::filesystem::remove(options.prefix + extension);
  }
  // The three files' bytes.
  std::string outputs() {
    std::string all;
    for (const char* extension : {".idx", ".bin", ".meta.json"}) all += read_bytes(options.prefix + extension);
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


std::string gzip(const std::string& text) {
  z_stream stream{};
  deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&stream, text.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::string zstd(const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

// Text that does not repeat too soon, in `lines` JSON lines.
std::string jsonl(int lines) {
  std::string out;
  for (int i = 0; i < lines; ++i) {
    out += "{\"id\": " + std::to_string(i) + ", \"text\": \"";
    for (int w = 0; w < 5 + i % 40; ++w) out += "w" + std::to_string((i * 7919 + w * 104729) % 100003) + (w % 9 == 8 ? "\\n" : " ");
    out += "\u00e9\"}\n";
  }
  return out;
}

TEST_F(Build, CompressedInputs) {
  options.split = DocumentSplit::blank_lines;
  const std::string large(3000000, 'q');
  const Documents expected = {"one\n|", "two\n|", large + "|"};
  for (const auto& bytes : {gzip("one\n\ntwo\n\n" + large), gzip("one\n\ntw") + gzip("") + gzip("o\n\n" + large), zstd("one\n\ntwo\n\n" + large),
                            zstd("one\n") + std::string("\x50\x2A\x4D\x18\x03\0\0\0abc", 11) + zstd("\ntwo\n\n" + large)}) {
    options.inputs.clear();
    input("a.txt", bytes);   // by content, not by name
    EXPECT_EQ(documents(), expected);
  }
  options.inputs.clear();
  input("b.jsonl.gz", gzip("{\"text\": \"x\"}\n"));
  input("c.json.zst", zstd("{\"text\": \"y\"}"));
  EXPECT_EQ(documents(), (Documents{"x|", "y|"}));
}

TEST_F(Build, DamagedCompressedInputs) {
  for (const auto& [whole, name] : {std::pair{gzip(jsonl(100)), std::string("gzip")}, std::pair{zstd(jsonl(100)), std::string("Zstandard")}}) {
    for (size_t cut : {whole.size() - 1, whole.size() / 2, size_t{12}}) {
      options.inputs.clear();
      input("a.jsonl.gz", whole.substr(0, cut));
      refuse(ExitCode::data, "a.jsonl.gz: truncated: ends in the middle of its " + name);
    }
    options.inputs.clear();
    input("a.jsonl.gz", whole + "behind");
    refuse(ExitCode::data, "a.jsonl.gz: damaged " + name);
    std::string changed = whole;
    changed[changed.size() / 2] = static_cast<char>(changed[changed.size() / 2] ^ 0x55);
    options.inputs.clear();
    input("a.jsonl.gz", changed);
    EXPECT_EQ(error_of([&] { build_token_files(options); }).code, ExitCode::data);
  }
}

TEST_F(Build, AnyNumberOfThreadsGivesTheSameBytes) {
  TinyTokenizer tiny;
  tiny.merges = {"w 1", "\xC4\xA0 w", "1 1", "0 0"};
  tiny.added = {{"<eos>", true}};
  write_bytes(directory / "t.json", tiny.json());
  input("a.jsonl", jsonl(20000));
  input("b.txt", "tail \xC3\xA9");
  for (const std::string& tokenizer : {std::string("byte"), "hf:" + (directory / "t.json")}) {
    options.tokenizer = tokenizer;
    std::string first;
    for (int threads : {1, 2, 5}) {
      options.threads = threads;
      build_token_files(options);
      if (first.empty()) first = outputs();
      EXPECT_TRUE(outputs() == first) << threads;
      remove_outputs();
    }
  }
}

TEST_F(Build, TheFirstErrorIsReportedWhateverTheThreads) {
  std::string text = jsonl(20000);
  for (size_t line : {15000u, 3000u}) {
    size_t at = 0;
    for (size_t i = 0; i < line; ++i) at = text.find('\n', at) + 1;
    text[at] = '[';
  }
  input("a.jsonl", text);
  for (int threads : {1, 4}) {
    options.threads = threads;
    refuse(ExitCode::data, "a.jsonl:3001: not valid JSON");
  }
}

TEST_F(Build, LargeIntegersAreValidJson) {
  input("a.jsonl", "{\"id\": 123456789012345678901234567890, \"text\": \"one\"}\n");
  EXPECT_EQ(documents(), (Documents{"one|"}));
}

TEST_F(Build, InvalidUtf8) {
  TinyTokenizer tiny;
  tiny.added = {{"<eos>", true}};
  write_bytes(directory / "t.json", tiny.json());
  options.tokenizer = "hf:" + (directory / "t.json");
  options.split = DocumentSplit::blank_lines;
  input("a.txt", "good\n\nbad \xC3\x28");
  refuse(ExitCode::data, "a.txt: not valid UTF-8 at byte 10");
  options.replace_invalid_utf8 = true;
  build_token_files(options);
  EXPECT_EQ(IndexedDataset::open(options.prefix).length(1), 9);  // "bad ", three bytes of U+FFFD, "(", EOD
  remove_outputs();
  options.inputs.clear();
  input("b.jsonl", "{\"text\": \"\xFF\"}");
  build_token_files(options);
  EXPECT_EQ(IndexedDataset::open(options.prefix).length(0), 4);
}

TEST_F(Build, PlaceOfInvalidUtf8InADocumentAmongOthers) {
  TinyTokenizer tiny;
  tiny.added = {{"<eos>", true}};
  write_bytes(directory / "t.json", tiny.json());
  options.tokenizer = "hf:" + (directory / "t.json");
  options.split = DocumentSplit::blank_lines;
  input("a.txt", "good\r\n\r\n\r\nbad \xC3\x28\r\n\r\nmore\n");
  refuse(ExitCode::data, "a.txt: not valid UTF-8 at byte 14");
}

// The documents and where each begins, of a reader that reads chunk_bytes at once.
std::vector<std::pair<std::string, int64_t>> documents_and_places(ReaderOptions reader_options, size_t chunk_bytes) {
  reader_options.chunk_bytes = chunk_bytes;
  DocumentReader reader(reader_options, {});
  std::vector<std::pair<std::string, int64_t>> all;
  TextChunk chunk;
  bool inside = false;
  while (reader.next(chunk)) {
    for (const TextPiece& piece : chunk.pieces) {
      if (!inside) all.push_back({{}, piece.at});
      all.back().first.append(chunk.text, piece.begin, piece.size);
      inside = !piece.ends_document;
    }
  }
  EXPECT_FALSE(inside);
  return all;
}

TEST_F(Build, DocumentsDoNotDependOnTheSizeOfChunks) {
  input("a.txt", "\r\none\r\n\r\n\n two \nlines\n\r\n\r\r\nthree, which is longer than the others\n\n\n");
  const std::vector<std::pair<std::string, int64_t>> expected = {{"one\r\n", 2}, {" two \nlines\n", 10}, {"\r\r\nthree, which is longer than the others\n", 24}};
  for (size_t chunk_bytes = 1; chunk_bytes < 99; ++chunk_bytes) {
    for (const bool streaming : {false, true}) {
      EXPECT_EQ(documents_and_places({options.inputs, TextFormat::text, DocumentSplit::blank_lines, streaming}, chunk_bytes), expected) << chunk_bytes << streaming;
    }
  }
}

TEST_F(Build, TokenizerWithoutEod) {
  write_bytes(directory / "t.json", TinyTokenizer().json());
  options.tokenizer = "hf:" + (directory / "t.json");
  input("a.txt", "text");
  refuse(ExitCode::config, "no token that ends a document");
  options.append_eod = false;
  build_token_files(options);
  EXPECT_EQ(read_token_meta(options.prefix)->eod_id, std::nullopt);
  EXPECT_EQ(read_token_meta(options.prefix)->tokenizer, "hf-bpe");
}

TEST_F(Build, CommitsDoNotChangeTheOutput) {
  input("a.jsonl.gz", gzip(jsonl(20000)));
  input("b.txt", "the second");
  build_token_files(options);
  const std::string expected = outputs();
  remove_outputs();
  options.commit_bytes = 1;
  options.resume = true;   // nothing to resume: begins anew
  build_token_files(options);
  EXPECT_TRUE(outputs() == expected);
  EXPECT_FALSE(read_journal(options.prefix));
}

TEST_F(Build, InterruptedBuilds) {
  input("a.txt", "some text");
  BuildProgress progress;
  progress.job = "another job";
  write_journal(options.prefix, progress);
  expect_error(ExitCode::data, "an interrupted build is there", [&] { build_token_files(options); });
  options.resume = true;
  expect_error(ExitCode::data, "had other inputs, options or another tokenizer", [&] { build_token_files(options); });
  for (const char* text : {"", "{}", "[]", "{\"format\": \"octet-build\", \"version\": 1}", "{\"format\": \"octet-build\", \"version\": [[[[1]]]]}"}) {
    write_bytes(journal_path(options.prefix), text);
    expect_error(ExitCode::data, "out.resume.json: ", [&] { build_token_files(options); });
  }
  progress.position = {3, 4, 5};
  progress.tokens = 6;
  EXPECT_EQ(to_json(parse_build_progress(to_json(progress), "j")), to_json(progress));
}

}  // namespace
}  // namespace octet::data
