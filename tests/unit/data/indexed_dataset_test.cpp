#include "data/indexed_dataset.h"

#include <sys/resource.h>

#include <array>
#include <csignal>
#include <cstring>

#include "data/statistics.h"
#include "unit/data/test_files.h"

namespace octet::data {
namespace {

// The layout's golden file: two documents of 3 and 5 uint16 tokens.
const char* const golden_hex =
    "4d4d4944494458000001000000000000000802000000000000000300000000000000030000000500000000000000000000000600000000000000"
    "000000000000000001000000000000000200000000000000";

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return bytes;
}

// A field of the index replaced by another value.
template <class T>
std::string with(std::string bytes, size_t offset, T value) {
  std::array<char, sizeof(T)> field;
  std::memcpy(field.data(), &value, sizeof(T));
  for (size_t i = 0; i < sizeof(T); ++i) bytes.at(offset + i) = field[i];
  return bytes;
}

struct Files : ::testing::Test {
  TemporaryDirectory directory;
  std::string prefix = directory / "set";
  const std::string golden = from_hex(golden_hex), golden_bin = from_hex("0100020003000a000b000c000d000e00");

  void put(const std::string& idx, const std::string& bin) {
    write_bytes(prefix + ".idx", idx);
    write_bytes(prefix + ".bin", bin);
  }
  void refuse(const std::string& part, const std::string& idx, const std::string& bin) {
    put(idx, bin);
    expect_error(ExitCode::data, part, [&] { IndexedDataset::open(prefix); });
  }
};

TEST_F(Files, WriterGivesTheGoldenBytes) {
  ASSERT_EQ(golden.size(), 82u);
  IndexedDatasetWriter writer(prefix, token_type_for(257));
  writer.append(std::vector<int32_t>{1, 2});
  writer.append(std::vector<int32_t>{3});
  writer.end_document();
  writer.append(std::vector<int32_t>{10, 11, 12, 13, 14});
  writer.end_document();
  EXPECT_EQ(writer.documents(), 2);
  EXPECT_EQ(writer.tokens(), 8);
  writer.finish();
  EXPECT_EQ(read_bytes(prefix + ".idx"), golden);
  EXPECT_EQ(read_bytes(prefix + ".bin"), golden_bin);
}

TEST_F(Files, WriterLeavesOnlyThePair) {
  write_documents(prefix, {3, 0, 5}, [](int64_t, int64_t p) { return static_cast<int32_t>(p); });
  EXPECT_EQ(directory.names(), (std::vector<std::string>{"set.bin", "set.idx"}));
  const auto set = IndexedDataset::open(prefix);
  EXPECT_EQ(set.documents(), 3);
  EXPECT_EQ(set.length(1), 0);
}

TEST_F(Files, ReaderReadsTheGoldenFile) {
  put(golden, golden_bin);
  const auto set = IndexedDataset::open(prefix);
  EXPECT_EQ(set.type(), TokenType::u16);
  EXPECT_EQ(set.sequences(), 2);
  EXPECT_EQ(set.documents(), 2);
  EXPECT_EQ(set.tokens(), 8);
  EXPECT_EQ(set.length(0), 3);
  EXPECT_EQ(set.length(1), 5);
  EXPECT_EQ(set.document_begin(1), 1);
  EXPECT_EQ(set.document_end(1), 2);
  EXPECT_EQ(set.max_token(), 14);
  std::vector<int32_t> tokens(3);
  set.read(1, 2, 3, tokens.data());
  EXPECT_EQ(tokens, (std::vector<int32_t>{12, 13, 14}));
  set.read_flat(2, 3, tokens.data());
  EXPECT_EQ(tokens, (std::vector<int32_t>{3, 10, 11}));
  EXPECT_EQ(set.sequence_of(2), 0);
  EXPECT_EQ(set.sequence_of(3), 1);
}

TEST_F(Files, ReadingOutsideASequenceIsOurBug) {
  put(golden, golden_bin);
  const auto set = IndexedDataset::open(prefix);
  int32_t out[8];
  for (const auto& [sequence, offset, count] : std::vector<std::array<int64_t,
      3>>{{2, 0, 1}, {-1, 0, 1}, {0, 0, 4}, {0, 3, 1}, {0, -1, 1}, {1, 1, INT64_MAX}}) {
    expect_error(ExitCode::internal, "", [&, s = sequence, o = offset, c = count] { set.read(s, o, c, out); });
  }
}

TEST_F(Files, EveryTruncationOfTheIndexIsRefused) {
  for (size_t bytes = 0; bytes < golden.size(); ++bytes) refuse("set.idx", golden.substr(0, bytes), golden_bin);
  for (size_t bytes = 0; bytes < golden_bin.size(); ++bytes) refuse("set.bin", golden, golden_bin.substr(0, bytes));
  refuse("set.bin", golden, golden_bin + "x");
}

TEST_F(Files, EverySingleByteChangeIsReadOrRefused) {
  int64_t read = 0, refused = 0;
  for (size_t at = 0; at < golden.size(); ++at) {
    for (int flip : {0x01, 0x03, 0x80}) {
      std::string bytes = golden;
      bytes[at] = static_cast<char>(bytes[at] ^ flip);
      put(bytes, golden_bin);
      try {
        const auto set = IndexedDataset::open(prefix);
        EXPECT_EQ(set.tokens() * size_bytes(set.type()), 16);
        EXPECT_EQ(set.sequences(), 2);
        ++read;
      } catch (const Error& error) {
        EXPECT_EQ(error.code, ExitCode::data) << error.what();
        ++refused;
      }
    }
  }
  EXPECT_EQ(read + refused, 82 * 3);
  EXPECT_EQ(read, 2);  // the inner document index 1 may also be 0 or 2: an empty document
}

TEST_F(Files, MalformedIndexTable) {
  refuse("no MMIDIDX", with(golden, 0, 'X'), golden_bin);
  refuse("no MMIDIDX", with(golden, 8, 'X'), golden_bin);
  refuse("version 2", with(golden, 9, uint64_t{2}), golden_bin);
  refuse("floating-point dtype code 6", with(golden, 17, uint8_t{6}), golden_bin);
  refuse("floating-point dtype code 7", with(golden, 17, uint8_t{7}), golden_bin);
  refuse("unknown dtype code 0", with(golden, 17, uint8_t{0}), golden_bin);
  refuse("unknown dtype code 9", with(golden, 17, uint8_t{9}), golden_bin);
  refuse("unknown dtype code 255", with(golden, 17, uint8_t{255}), golden_bin);
  // Counts whose byte sizes overflow 64 bits, or would if multiplied before they are compared.
  for (uint64_t huge : {uint64_t{1} << 63, ~uint64_t{0}, uint64_t{1} << 61, ~uint64_t{0} / 12 + 1, ~uint64_t{0} / 12 + 3}) {
    refuse("truncated", with(golden, 18, huge), golden_bin);
    refuse("truncated", with(golden, 26, huge), golden_bin);
    refuse("truncated", with(with(golden, 18, huge), 26, huge), golden_bin);
  }
  refuse("beyond", with(golden, 26, uint64_t{2}), golden_bin);
  refuse("negative length -1", with(golden, 38, int32_t{-1}), golden_bin);
  refuse("points to byte 2", with(golden, 42, int64_t{2}), golden_bin);
  refuse("points to byte 7", with(golden, 50, int64_t{7}), golden_bin);
  refuse("first document index is 1", with(golden, 58, int64_t{1}), golden_bin);
  refuse("document index 1 is 3", with(golden, 66, int64_t{3}), golden_bin);
  refuse("document index 1 is -1", with(golden, 66, int64_t{-1}), golden_bin);
  refuse("last document index is 1", with(golden, 74, int64_t{1}), golden_bin);
  refuse("sequence 1 points to byte 6", with(golden, 17, uint8_t{4}), golden_bin);  // int32: the pointers no longer fit
  refuse("mode 1", golden + std::string("\0\1", 2), golden_bin);
  refuse("beyond", golden + "x", golden_bin);
}

TEST_F(Files, NoDocumentIndexIsRefused) {
  std::string empty = golden.substr(0, 34);
  empty = with(with(empty, 18, uint64_t{0}), 26, uint64_t{0});
  refuse("no document indices", empty, "");
}

TEST_F(Files, EmptySetIsReadable) {
  write_documents(prefix, {}, [](int64_t, int64_t) { return 0; });
  const auto set = IndexedDataset::open(prefix);
  EXPECT_EQ(set.sequences(), 0);
  EXPECT_EQ(set.tokens(), 0);
  EXPECT_EQ(set.max_token(), -1);
  EXPECT_EQ(unigram_entropy(set), 0.0);
}

TEST_F(Files, TextModesAreAccepted) {
  put(golden + std::string(2, '\0'), golden_bin);
  EXPECT_EQ(IndexedDataset::open(prefix).tokens(), 8);
}

TEST_F(Files, MissingAndOddFiles) {
  expect_error(ExitCode::data, "set.idx: cannot open", [&] { IndexedDataset::open(prefix); });
  write_bytes(prefix + ".idx", golden);
  expect_error(ExitCode::data, "set.bin: cannot open", [&] { IndexedDataset::open(prefix); });
  std::filesystem::create_directory(prefix + ".bin");
  expect_error(ExitCode::data, "not a regular file", [&] { IndexedDataset::open(prefix); });
}

TEST_F(Files, EveryDtypeRoundTrips) {
  const std::vector<std::pair<TokenType, int64_t>> most = {{TokenType::u8, 255},   {TokenType::i8, 127},         {TokenType::i16, 32767},
                                                           {TokenType::u16, 65535}, {TokenType::i32, INT32_MAX}, {TokenType::i64, INT32_MAX}};
  for (const auto& [type, id] : most) {
    const std::string name_of = directory / std::string(name(type));
    write_documents(name_of, {1, 2, 9000}, [id = id](int64_t s, int64_t p) { return static_cast<int32_t>(id - (s + p) % 100); }, type);
    const auto set = IndexedDataset::open(name_of);
    EXPECT_EQ(set.type(), type);
    EXPECT_EQ(set.max_token(), id);
    std::vector<int32_t> tokens(9000);
    set.read(2, 0, 9000, tokens.data());
    for (int64_t p = 0; p < 9000; ++p) ASSERT_EQ(tokens[static_cast<size_t>(p)], id - (2 + p) % 100);
  }
  for (const auto& [type, id] : most) {
    if (id == INT32_MAX) continue;
    IndexedDatasetWriter writer(directory / "over", type);
    expect_error(ExitCode::data, "does not fit", [&, id = id] { writer.append(std::vector<int32_t>{static_cast<int32_t>(id + 1)}); });
    expect_error(ExitCode::data, "does not fit", [&] { writer.append(std::vector<int32_t>{-1}); });
  }
}

TEST_F(Files, NegativeAndWideIdsAreNamed) {
  // One sequence of two int64 tokens.
  std::string idx = with(golden.substr(0, 34), 17, uint8_t{5});
  idx = with(with(idx, 18, uint64_t{1}), 26, uint64_t{2});
  idx += from_hex("02000000" "0000000000000000" "0000000000000000" "0100000000000000");
  std::string bin(16, '\0');
  put(idx, with(bin, 8, int64_t{1} << 31));
  const auto wide = IndexedDataset::open(prefix);
  int32_t out[2];
  expect_error(ExitCode::data, "sequence 0, position 1: token id 2147483648", [&] { wide.read(0, 0, 2, out); });
  put(idx, with(bin, 0, int64_t{-5}));
  const auto negative = IndexedDataset::open(prefix);
  negative.read(0, 0, 2, out);
  EXPECT_EQ(out[0], -5);
  expect_error(ExitCode::data, "sequence 0, position 0: token id -5", [&] { negative.check_tokens(100); });
}

TEST_F(Files, CheckTokensNamesThePlace) {
  put(golden, golden_bin);
  const auto set = IndexedDataset::open(prefix);
  set.check_tokens(15);
  expect_error(ExitCode::data, "set.bin: sequence 1, position 4: token id 14 is outside the vocabulary of 14 ids", [&] { set.check_tokens(14); });
}

TEST_F(Files, FileCutAfterOpeningIsAnError) {
  put(golden, golden_bin);
  const auto set = IndexedDataset::open(prefix);
  std::filesystem::resize_file(prefix + ".bin", 8);
  int32_t out[8];
  expect_error(ExitCode::data, "ends at byte 8", [&] { set.read_flat(0, 8, out); });
}

TEST_F(Files, WriterNeverReplacesAFile) {
  for (const char* suffix : {".idx", ".bin"}) {
    write_bytes(prefix + suffix, "precious");
    expect_error(ExitCode::data, "exists already", [&] { IndexedDatasetWriter(prefix, TokenType::u16); });
    EXPECT_EQ(read_bytes(prefix + suffix), "precious");
    std::filesystem::remove(prefix + suffix);
    EXPECT_TRUE(directory.names().empty());
    // The same when the file appears while the writer runs.
    {
      IndexedDatasetWriter writer(prefix, TokenType::u16);
      write_bytes(prefix + suffix, "precious");
      expect_error(ExitCode::data, "exists already", [&] { writer.finish(); });
    }
    EXPECT_EQ(directory.names(), (std::vector<std::string>{std::string("set") + suffix}));
    EXPECT_EQ(read_bytes(prefix + suffix), "precious");
    std::filesystem::remove(prefix + suffix);
  }
}

TEST_F(Files, SecondWriterIsRefusedLeftoversAreNot) {
  {
    IndexedDatasetWriter first(prefix, TokenType::u16);
    expect_error(ExitCode::data, "another process is writing", [&] { IndexedDatasetWriter(prefix, TokenType::u16); });
    first.append(std::vector<int32_t>{1});
  }
  EXPECT_TRUE(directory.names().empty());
  write_bytes(prefix + ".bin.tmp", "left by a killed run, longer than what follows it");
  write_documents(prefix, {3}, [](int64_t, int64_t p) { return static_cast<int32_t>(p); });
  EXPECT_EQ(IndexedDataset::open(prefix).tokens(), 3);
}

TEST_F(Files, MissingDirectoryIsAnError) {
  expect_error(ExitCode::data, "none/set.bin.tmp: cannot write", [&] { IndexedDatasetWriter(directory / "none/set", TokenType::u16); });
}

TEST_F(Files, FailedWriteLeavesNothing) {
  struct rlimit before {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const struct rlimit small {4096, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const Error error = error_of([&] { write_documents(prefix, {100000}, [](int64_t, int64_t) { return 1; }); });
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(error.code, ExitCode::checkpoint) << error.what();
  EXPECT_TRUE(directory.names().empty());
}

TEST(TokenTypes, WriterThreshold) {
  EXPECT_EQ(token_type_for(65499), TokenType::u16);
  EXPECT_EQ(token_type_for(65500), TokenType::i32);
}

TEST_F(Files, UnigramEntropy) {
  // Ids 0, 1, 2, 2: (1/4 1/4 1/2) gives 1.5 bits.
  write_documents(prefix, {4}, [](int64_t, int64_t p) { return static_cast<int32_t>(std::min<int64_t>(p, 2)); });
  const auto set = IndexedDataset::open(prefix);
  EXPECT_NEAR(unigram_entropy(set), 1.5 * 0.69314718055994531, 1e-15);
  const auto histogram = token_histogram(set);
  EXPECT_EQ(histogram.counts, (std::vector<std::pair<int64_t, int64_t>>{{0, 1}, {1, 1}, {2, 2}}));
}

}  // namespace
}  // namespace octet::data
