#include "data/token_source.h"

#include <cstring>
#include <numeric>

#include "data/datatrove.h"
#include "data/llmc.h"
#include "data/raw_tokens.h"
#include "unit/data/test_files.h"

namespace octet::data {
namespace {

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

std::string llmc_file(int32_t magic, int32_t version, int32_t count, const std::string& tokens) {
  std::vector<int32_t> header(256);
  header[0] = magic;
  header[1] = version;
  header[2] = count;
  return bytes_of(header) + tokens;
}

std::vector<int32_t> all_tokens(const TokenSource& source) {
  std::vector<int32_t> out(static_cast<size_t>(source.tokens()));
  source.read_flat(0, source.tokens(), out.data());
  return out;
}

std::vector<int64_t> lengths_of(const TokenSource& source) {
  std::vector<int64_t> out;
  for (int64_t s = 0; s < source.sequences(); ++s) out.push_back(source.length(s));
  return out;
}

struct Formats : ::testing::Test {
  TemporaryDirectory directory;
  // Three documents, the last without an end: 1 2 9 | 9 | 3 4.
  const std::vector<uint16_t> narrow = {1, 2, 9, 9, 3, 4};
  const std::vector<uint32_t> wide = {1, 2, 9, 9, 3, 70000};

  std::string file(const std::string& name, const std::string& bytes) {
    write_bytes(directory / name, bytes);
    return directory / name;
  }
  void write_datatrove(const std::string& name, const std::string& tokens, const std::vector<uint64_t>& ends, const std::string& metadata) {
    file(name, tokens);
    file(name + ".index", bytes_of(ends));
    if (!metadata.empty()) file(name + ".metadata", metadata);
  }
  void refuse(const std::string& part, const std::string& path, TokenFormat format = TokenFormat::automatic) {
    expect_error(ExitCode::data, part, [&] { TokenSource::open(path, format, 9); });
  }
};

TEST_F(Formats, LlmcOfBothWidths) {
  const TokenSource u16 = TokenSource::open(file("a.bin", llmc_file(20240520, 1, 6, bytes_of(narrow))), TokenFormat::automatic, 9);
  EXPECT_EQ(u16.format(), TokenFormat::llmc);
  EXPECT_EQ(u16.type(), TokenType::u16);
  EXPECT_EQ(lengths_of(u16), (std::vector<int64_t>{3, 1, 2}));
  EXPECT_EQ(u16.documents(), 3);
  EXPECT_EQ(all_tokens(u16), (std::vector<int32_t>{1, 2, 9, 9, 3, 4}));
  const TokenSource u32 = TokenSource::open(file("b.bin", llmc_file(20240801, 7, 6, bytes_of(wide))), TokenFormat::llmc, 9);
  EXPECT_EQ(u32.type(), TokenType::u32);
  EXPECT_EQ(all_tokens(u32), (std::vector<int32_t>{1, 2, 9, 9, 3, 70000}));
  // Without the id the file is one document.
  EXPECT_EQ(lengths_of(TokenSource::open(directory / "a.bin", TokenFormat::automatic, 256)), (std::vector<int64_t>{6}));
}

TEST_F(Formats, HostileLlmc) {
  const std::string good = llmc_file(20240520, 1, 6, bytes_of(narrow));
  for (size_t bytes = 4; bytes < good.size(); bytes += bytes < 1000 ? 97 : 1) {
    refuse("a.bin", file("a.bin", good.substr(0, bytes)));
  }
  for (size_t bytes : {0, 1, 3}) refuse("says its format", file("a.bin", good.substr(0, bytes)));
  refuse("announces 6 tokens of uint16 = 1036 bytes", file("a.bin", good + "x"));
  refuse("version 2; with magic 20240520 only version 1", file("a.bin", llmc_file(20240520, 2, 6, bytes_of(narrow))));
  refuse("version 1; with magic 20240801 only version 7", file("a.bin", llmc_file(20240801, 1, 6, bytes_of(wide))));
  refuse("announces -1 tokens", file("a.bin", llmc_file(20240520, 1, -1, bytes_of(narrow))));
  refuse("announces 0 tokens", file("a.bin", llmc_file(20240520, 1, 0, "")));
  refuse("evaluation file", file("a.bin", llmc_file(20240522, 1, 6, bytes_of(narrow))));
  refuse("no llm.c token file (magic 7", file("a.bin", llmc_file(7, 1, 6, bytes_of(narrow))), TokenFormat::llmc);
  refuse("announces 2147483647 tokens", file("a.bin", llmc_file(20240801, 7, INT32_MAX, bytes_of(wide))));
}

TEST_F(Formats, Raw) {
  file("r.bin", bytes_of(narrow));
  const TokenSource u16 = TokenSource::open(directory / "r.bin", TokenFormat::raw_u16, 9);
  EXPECT_EQ(lengths_of(u16), (std::vector<int64_t>{3, 1, 2}));
  EXPECT_EQ(all_tokens(u16), (std::vector<int32_t>{1, 2, 9, 9, 3, 4}));
  EXPECT_EQ(TokenSource::open(directory / "r.bin", TokenFormat::raw_u32, 9).tokens(), 3);
  refuse("is no token file that says its format", directory / "r.bin");
  refuse("no whole number of tokens of 4 bytes", file("odd", bytes_of(narrow).substr(0, 10)), TokenFormat::raw_u32);
  refuse("is empty", file("empty", ""), TokenFormat::raw_u16);
  // Ids beyond int32 are no ids.
  file("big", bytes_of(std::vector<uint32_t>{1, 0x80000000u}));
  const TokenSource big = TokenSource::open(directory / "big", TokenFormat::raw_u32);
  expect_error(ExitCode::data, "position 1: token id 2147483648 is outside the vocabulary", [&] { all_tokens(big); });
  expect_error(ExitCode::data, "big: sequence 0, position 1", [&] { big.check_tokens(100); });
}

TEST_F(Formats, DocumentsOfTwoToThe31TokensAreRefused) {
  const auto zeros = [](uint64_t tokens) {
    return ByteReader{tokens * 2, "zeros", [](uint64_t, void* out, size_t n) { std::memset(out, 0, n); }};
  };
  expect_error(ExitCode::data, "2147483648 tokens from token 0 on without the end-of-document id 9", [&] { raw_layout(zeros(uint64_t{1} << 31), TokenType::u16, 9); });
}

TEST_F(Formats, Datatrove) {
  write_datatrove("x.ds", bytes_of(narrow), {3, 4, 6}, "some/tokenizer|2\n6\n6.0 T");
  for (const char* name : {"x.ds", "x"}) {
    const TokenSource source = TokenSource::open(directory / name);
    EXPECT_EQ(source.format(), TokenFormat::datatrove);
    EXPECT_EQ(lengths_of(source), (std::vector<int64_t>{3, 1, 2}));
    EXPECT_EQ(all_tokens(source), (std::vector<int32_t>{1, 2, 9, 9, 3, 4}));
  }
  // Without metadata the index tells the width. Empty documents are allowed.
  write_datatrove("y.ds", bytes_of(wide), {3, 3, 6}, "");
  const TokenSource source = TokenSource::open(directory / "y.ds");
  EXPECT_EQ(source.type(), TokenType::u32);
  EXPECT_EQ(lengths_of(source), (std::vector<int64_t>{3, 0, 3}));
  // A mask that masks nothing is none.
  file("x.ds.loss", std::string(6, '\1'));
  EXPECT_EQ(TokenSource::open(directory / "x.ds").tokens(), 6);
}

TEST_F(Formats, HostileDatatrove) {
  const std::string tokens = bytes_of(narrow), good = "t|2\n6\n6";
  const auto with = [&](const std::vector<uint64_t>& ends, const std::string& metadata) { write_datatrove("x.ds", tokens, ends, metadata); };
  refuse("x.ds", file("x.ds", tokens));   // no index
  with({3, 4, 7}, good);
  refuse("ends at token 7, but", directory / "x.ds");
  with({3, 2, 6}, good);
  refuse("document 1 ends at token 2, outside [3, 6]", directory / "x.ds");
  with({9, 2, 6}, good);
  refuse("document 0 ends at token 9, outside [0, 6]", directory / "x.ds");
  with({3, ~uint64_t{0}, 6}, good);
  refuse("outside [3, 6]", directory / "x.ds");
  with({}, good);
  refuse("has 0 bytes, not 8 for each", directory / "x.ds");
  file("x.ds.index", "1234567");
  refuse("has 7 bytes, not 8 for each", directory / "x.ds");
  for (const auto& [metadata, part] : {std::pair{"t|2\n7\n7", "announces 7 tokens"}, std::pair{"t|4\n6\n6", "announces 6 tokens of uint32"}, std::pair{"t|3\n6\n", "first line"},
                                       std::pair{"t\n6\n", "first line"}, std::pair{"t|2\n-6\n", "second line"}, std::pair{"t|2", "second line"},
                                       std::pair{"t|2\n99999999999999999999\n", "second line"}, std::pair{"\n", "first line"}}) {
    with({3, 4, 6}, metadata);
    refuse(part, directory / "x.ds");
  }
  with({3, 4, 6}, good);
  file("x.ds.metadata", std::string(70000, 'x'));
  refuse("too many for the metadata", directory / "x.ds");
  with({3, 4, 5}, good);
  std::filesystem::remove(directory / "x.ds.metadata");
  refuse("with neither 2 nor 4 bytes a token", directory / "x.ds");
  with({3, 4, 6}, good);
  file("x.ds.loss", std::string("\1\1\0\1\1\1", 6));
  refuse("masks the loss of token 2 (byte 0)", directory / "x.ds");
  file("x.ds.loss", "\1\1");
  refuse("has 2 bytes, not one for each of the 6 tokens", directory / "x.ds");
}

TEST_F(Formats, RandomBytesNeverCrashAParser) {
  const Philox random(7, RngPurpose::init, "hostile");
  std::vector<unsigned char> bytes(1200);
  int refused = 0;
  for (uint64_t round = 0; round < 2000; ++round) {
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<unsigned char>(random.word(round * bytes.size() + i));
    if (round % 2) std::memcpy(bytes.data(), "\xd8\xd6\x34\x01\x01\0\0\0", 8);   // llm.c's magic and version
    const ByteReader all = ByteReader::of(std::span(bytes).first(bytes.size() - round % 300), "memory");
    const ByteReader part = ByteReader::of(std::span(bytes).first(64), "index");
    const std::vector<std::function<void()>> parsers = {[&] { parse_llmc(all, 9); }, [&] { parse_datatrove_metadata(all); },
                                                        [&] { parse_datatrove(all, part, std::nullopt); }, [&] { parse_megatron_index(all); }};
    for (const auto& parse : parsers) {
      try {
        parse();
      } catch (const Error& error) {
        EXPECT_EQ(error.code, ExitCode::data) << error.what();
        ++refused;
      }
    }
  }
  EXPECT_EQ(refused, 8000);
}

TEST_F(Formats, PatternsAreFilesInTheOrderOfTheirNames) {
  std::filesystem::create_directories(directory / "d[1]");
  const auto id = [](int32_t base) { return [base](int64_t s, int64_t p) { return static_cast<int32_t>(base + 10 * s + p); }; };
  write_documents(directory / "d[1]/shard_2", {2, 3}, id(200));
  write_documents(directory / "d[1]/shard_10", {4}, id(100), TokenType::i32);
  write_documents(directory / "d[1]/shard_3", {}, id(300));
  write_documents(directory / "d[1]/shard_4", {1}, id(400));
  file("d[1]/shard_4.meta.json", "{}");
  file("d[1]/other.txt", "text");
  for (const char* pattern : {"d[1]/shard_*", "d[?]/shard_*.idx", "d[1]/shard_*.bin"}) {
    const TokenSource source = TokenSource::open(directory / pattern);
    EXPECT_EQ(source.files(), 4);
    EXPECT_EQ(lengths_of(source), (std::vector<int64_t>{4, 2, 3, 1}));
    EXPECT_EQ(all_tokens(source), (std::vector<int32_t>{100, 101, 102, 103, 200, 201, 210, 211, 212, 400}));
    EXPECT_EQ(source.documents(), 4);
    EXPECT_EQ(source.document_begin(2), 2);
    EXPECT_EQ(source.token_bytes(), 4 * 4 + 6 * 2);
    std::vector<int32_t> across(4);
    source.read_flat(8, 2, across.data());
    EXPECT_EQ(across[1], 400);
    source.read(2, 1, 2, across.data());
    EXPECT_EQ(across[0], 211);
    expect_error(ExitCode::data, "shard_2.bin: sequence 1, position 2: token id 212", [&] { source.check_tokens(212); });
  }
  refuse("matches no file", directory / "d[1]/none*");
  refuse("matches no file", directory / "none*/x");
  write_datatrove("x_1.ds", bytes_of(narrow), {3, 6}, "t|2\n6\n6");
  write_datatrove("x_0.ds", bytes_of(narrow), {6}, "t|2\n6\n6");
  EXPECT_EQ(lengths_of(TokenSource::open(directory / "x_*")), (std::vector<int64_t>{6, 3, 3}));
}

TEST_F(Formats, NamesAndMistakes) {
  for (const char* text : {"auto", "megatron", "llmc", "datatrove", "raw_u16", "raw_u32"}) EXPECT_EQ(name(token_format(text)), text);
  expect_error(ExitCode::config, "'parquet' is no format", [] { token_format("parquet"); });
  write_documents(directory / "p", {3}, [](int64_t, int64_t) { return 1; });
  refuse("give the path without .idx/.bin", directory / "p.bin");
  refuse("give the path without .idx/.bin", directory / "p.idx");
  refuse("absent.idx", directory / "absent");
}

}  // namespace
}  // namespace octet::data
