#include "checkpoint/safetensors.h"

#include <sys/stat.h>

#include <cstring>
#include <random>

#include "checkpoint/strict_json.h"
#include "unit/checkpoint/support.h"

namespace octet {
namespace {

using namespace test;

std::string from_hex(std::string_view hex) {
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2) bytes.push_back(static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16)));
  return bytes;
}

// One BF16 tensor "w" [2, 2] = 1, 2, 3, 4 with {"format": "pt"}: made by an independent Python writer.
std::string golden() {
  return from_hex(
      "58000000000000007b225f5f6d657461646174615f5f223a7b22666f726d6174223a227074227d2c2277223a7b226474797065223a2242463136222c22736861706522"
      "3a5b322c325d2c22646174615f6f666673657473223a5b302c385d7d7d803f004040408040");
}

std::string with_header(std::string header, const std::string& data) {
  const uint64_t length = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + header + data;
}

TEST(Safetensors, WritesGoldenBytes) {
  const TempDir dir;
  const uint16_t w[] = {0x3f80, 0x4000, 0x4040, 0x4080};
  const std::vector<TensorBytes> tensors = {{"w", Dtype::bf16, {2, 2}, w}};
  const auto checksums = write_safetensors(dir.path() / "f", tensors, {{"format", "pt"}});
  EXPECT_EQ(slurp(dir.path() / "f"), golden());
  EXPECT_EQ(safetensors_file_bytes(tensors, {{"format", "pt"}}), 104u);
  EXPECT_EQ(checksums, std::vector<uint64_t>{xxh64(w, sizeof w)});
}

TEST(Safetensors, ChecksumIsXxh64) {
  // Published check values of XXH64 with seed 0.
  EXPECT_EQ(xxh64("", 0), 0xef46db3751d8e999u);
  EXPECT_EQ(xxh64("abc", 3), 0x44bc2cf5ad770999u);
}

TEST(Safetensors, ReadsGoldenBytes) {
  const TempDir dir;
  spill(dir.path() / "f", golden());
  const auto file = SafetensorsFile::open(dir.path() / "f");
  EXPECT_EQ(file.metadata(), (SafetensorsMetadata{{"format", "pt"}}));
  ASSERT_EQ(file.tensors().size(), 1u);
  EXPECT_EQ(file.tensors()[0].name, "w");
  EXPECT_EQ(file.tensors()[0].begin, 96u);
  uint16_t w[4] = {};
  file.read("w", Dtype::bf16, {2, 2}, w);
  EXPECT_EQ(w[0], 0x3f80);
  EXPECT_EQ(w[3], 0x4080);
  EXPECT_EQ(file.checksum("w"), xxh64(w, sizeof w));
  expect_contains(error_of(ExitCode::checkpoint, [&] { file.read("w", Dtype::bf16, {4}, w); }), "[4]");
  expect_contains(error_of(ExitCode::checkpoint, [&] { file.read("w", Dtype::f32, {2, 2}, w); }), "f32");
  expect_contains(error_of(ExitCode::checkpoint, [&] { file.read("v", Dtype::bf16, {2, 2}, w); }), "\"v\"");
}

// The header that the reference writer (safetensors 0.8.0) makes for these tensors.
TEST(Safetensors, OrderIsByDtypeRankThenName) {
  const TempDir dir;
  const std::vector<uint32_t> bytes(16, 0x01020304);
  std::vector<TensorBytes> tensors;
  for (const auto& [name, dtype] : std::vector<std::pair<std::string, Dtype>>{{"u8", Dtype::u8},
                                                                              {"f32.b", Dtype::f32},
                                                                              {"f32.a", Dtype::f32},
                                                                              {"e5m2", Dtype::e5m2},
                                                                              {"e4m3", Dtype::e4m3},
                                                                              {"i32", Dtype::i32},
                                                                              {"e8m0", Dtype::e8m0},
                                                                              {"bf16", Dtype::bf16}}) {
    tensors.push_back({name, dtype, {3}, bytes.data()});
  }
  write_safetensors(dir.path() / "f", tensors);
  const std::string content = slurp(dir.path() / "f");
  uint64_t length = 0;
  std::memcpy(&length, content.data(), 8);
  EXPECT_EQ(length % 8, 0u);
  std::string header = content.substr(8, length);
  header.resize(header.find_last_not_of(' ') + 1);
  EXPECT_EQ(header, R"({"f32.a":{"dtype":"F32","shape":[3],"data_offsets":[0,12]},"f32.b":{"dtype":"F32","shape":[3],"data_offsets":[12,24]},)"
                    R"("i32":{"dtype":"I32","shape":[3],"data_offsets":[24,36]},"bf16":{"dtype":"BF16","shape":[3],"data_offsets":[36,42]},)"
                    R"("e8m0":{"dtype":"F8_E8M0","shape":[3],"data_offsets":[42,45]},"e4m3":{"dtype":"F8_E4M3","shape":[3],"data_offsets":[45,48]},)"
                    R"("e5m2":{"dtype":"F8_E5M2","shape":[3],"data_offsets":[48,51]},"u8":{"dtype":"U8","shape":[3],"data_offsets":[51,54]}})");
}

TEST(Safetensors, RoundTripsEveryDtypeRankAndEmptiness) {
  const TempDir dir;
  std::vector<unsigned char> bytes(4096);
  std::mt19937 random(7);
  for (auto& b : bytes) b = static_cast<unsigned char>(random());
  const std::vector<Shape> shapes = {{}, {0}, {5}, {2, 3}, {0, 7}, {2, 3, 2}, {1, 2, 3, 4}};
  std::vector<TensorBytes> tensors;
  for (int d = 0; d <= static_cast<int>(Dtype::e8m0); ++d) {
    for (size_t s = 0; s < shapes.size(); ++s) {
      tensors.push_back({"t\u00e9 \"" + std::to_string(d) + "/" + std::to_string(s), static_cast<Dtype>(d), shapes[s], bytes.data() + d * 7 + s});
    }
  }
  const auto checksums = write_safetensors(dir.path() / "f", tensors, {{"note", "line\nbreak"}});
  EXPECT_EQ(fs::file_size(dir.path() / "f"), safetensors_file_bytes(tensors, {{"note", "line\nbreak"}}));
  const auto file = SafetensorsFile::open(dir.path() / "f");
  EXPECT_EQ(file.metadata(), (SafetensorsMetadata{{"note", "line\nbreak"}}));
  ASSERT_EQ(file.tensors().size(), tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto& t = tensors[i];
    const size_t n = static_cast<size_t>(t.shape.elements()) * size_bytes(t.dtype);
    std::vector<unsigned char> out(n);
    file.read(t.name, t.dtype, t.shape, out.data());
    EXPECT_TRUE(n == 0 || std::memcmp(out.data(), t.data, n) == 0) << t.name;
    EXPECT_EQ(file.checksum(t.name), checksums[i]);
    EXPECT_EQ(checksums[i], xxh64(t.data, n));
  }
}

TEST(Safetensors, TensorLargerThanOnePieceKeepsItsChecksum) {
  const TempDir dir;
  std::vector<uint32_t> values((size_t{9} << 20) / 4 + 3);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<uint32_t>(i * 2654435761u);
  const auto checksums = write_safetensors(dir.path() / "f", {{"w", Dtype::i32, {static_cast<int64_t>(values.size())}, values.data()}});
  EXPECT_EQ(checksums[0], xxh64(values.data(), values.size() * 4));
  EXPECT_EQ(SafetensorsFile::open(dir.path() / "f").checksum("w"), checksums[0]);
}

TEST(Safetensors, WriterRefusesMisuse) {
  const TempDir dir;
  const float x[2] = {};
  const fs::path path = dir.path() / "f";
  const auto refused = [&](const std::vector<TensorBytes>& tensors) {
    return error_of(ExitCode::internal, [&] { write_safetensors(path, tensors); });
  };
  expect_contains(refused({{"a", Dtype::f32, {2}, x}, {"a", Dtype::f32, {1}, x}}), "used twice");
  expect_contains(refused({{"__metadata__", Dtype::f32, {2}, x}}), "reserved");
  expect_contains(refused({{"a\xff", Dtype::f32, {2}, x}}), "UTF-8");
  expect_contains(refused({{"a", Dtype::f32, {-2}, x}}), "[-2]");
  expect_contains(refused({{"a", Dtype::f32, {int64_t{1} << 40, int64_t{1} << 40}, x}}), "impossible shape");
  EXPECT_FALSE(fs::exists(path));
}

TEST(Safetensors, EveryTruncationAndExtensionOfTheGoldenFileIsRefused) {
  const TempDir dir;
  const std::string whole = golden();
  for (size_t n = 0; n < whole.size(); ++n) {
    spill(dir.path() / "f", whole.substr(0, n));
    const auto line = error_of(ExitCode::checkpoint, [&] { SafetensorsFile::open(dir.path() / "f"); });
    expect_contains(line, (dir.path() / "f").string());
  }
  spill(dir.path() / "f", whole + '\0');
  error_of(ExitCode::checkpoint, [&] { SafetensorsFile::open(dir.path() / "f"); });
}

TEST(Safetensors, FileThatShrinksAfterOpenIsAnError) {
  const TempDir dir;
  spill(dir.path() / "f", golden());
  const auto file = SafetensorsFile::open(dir.path() / "f");
  fs::resize_file(dir.path() / "f", 100);
  uint16_t w[4];
  expect_contains(error_of(ExitCode::checkpoint, [&] { file.read("w", Dtype::bf16, {2, 2}, w); }), "ends at byte");
}

struct Hostile {
  const char* what;
  std::string file;
  const char* message;
};

std::vector<Hostile> hostile_files() {
  const std::string d8(8, 'x');
  const auto one = [&](const std::string& entry) { return with_header("{\"w\":" + entry + "}", d8); };
  const auto entry = [&](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return one("{\"dtype\":" + dtype + ",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}");
  };
  const auto two = [&](const std::string& a, const std::string& b) {
    const std::string head = R"({"dtype":"U8","shape":[4],"data_offsets":)";
    return with_header("{\"a\":" + head + a + "},\"b\":" + head + b + "}}", d8);
  };
  std::string huge_length = golden();
  std::memset(huge_length.data(), 0xff, 8);
  std::string long_length = golden();
  long_length[3] = 0x10;
  std::string deep = "{\"w\":" + std::string(100000, '[') + std::string(100000, ']') + "}";
  std::string many = "{\"w\":{\"dtype\":\"U8\",\"shape\":[";
  for (int i = 0; i < 100000; ++i) many += "1,";
  many += "1],\"data_offsets\":[0,8]}}";
  return {
      {"empty file", "", "at least 8"},
      {"length only", std::string(8, '\0'), "does not begin"},
      {"length beyond 2^63", huge_length, "header length"},
      {"length beyond the file", long_length, "header length"},
      {"leading space", with_header(" {}", ""), "does not begin"},
      {"leading byte order mark", with_header("\xef\xbb\xbf{}", ""), "does not begin"},
      {"array at the top", with_header("[]", ""), "does not begin"},
      {"zero padding", with_header(std::string("{}\0", 3), ""), "does not end"},
      {"newline padding", with_header("{}\n", ""), "does not end"},
      {"two values", with_header("{}{}", ""), "not valid JSON"},
      {"comment", with_header("{/*x*/}", ""), "not valid JSON"},
      {"trailing comma", with_header("{\"__metadata__\":{},}", ""), "not valid JSON"},
      {"invalid UTF-8", with_header("{\"\xff\":{}}", ""), "not valid JSON"},
      {"deep nesting", with_header(deep, d8), "nested deeper"},
      {"long shape", with_header(many, d8), "more than 64 elements"},
      {"duplicate tensor",
       with_header(R"({"w":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"w":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})", d8), "duplicate"},
      {"duplicate by escape",
       with_header(R"({"w":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"\u0077":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})", d8),
       "duplicate"},
      {"duplicate field", one(R"({"dtype":"U8","dtype":"U8","shape":[8],"data_offsets":[0,8]})"), "duplicate"},
      {"duplicate metadata", with_header(R"({"__metadata__":{},"__metadata__":{}})", ""), "duplicate"},
      {"entry not an object", one("7"), "not an object"},
      {"missing field", one(R"({"dtype":"U8","shape":[8]})"), "exactly dtype"},
      {"unknown field", one(R"({"dtype":"U8","shape":[8],"data_offsets":[0,8],"x":1})"), "exactly dtype"},
      {"misspelt field", one(R"({"dtype":"U8","shape":[8],"data_offset":[0,8]})"), "exactly dtype"},
      {"unknown dtype", entry("\"F7\"", "[8]", "[0,8]"), "F7"},
      {"dtype we do not read", entry("\"F16\"", "[4]", "[0,8]"), "F16"},
      {"packed dtype", entry("\"F4\"", "[16]", "[0,8]"), "F4"},
      {"dtype a number", entry("3", "[8]", "[0,8]"), "dtype is not a string"},
      {"shape negative", entry("\"U8\"", "[-8]", "[0,8]"), "non-negative"},
      {"shape fraction", entry("\"U8\"", "[8.0]", "[0,8]"), "non-negative"},
      {"shape exponent", entry("\"U8\"", "[8e0]", "[0,8]"), "non-negative"},
      {"shape a string", entry("\"U8\"", "\"8\"", "[0,8]"), "non-negative"},
      {"shape null", entry("\"U8\"", "null", "[0,8]"), "non-negative"},
      {"shape beyond int64", entry("\"U8\"", "[18446744073709551615]", "[0,8]"), "non-negative"},
      {"shape beyond uint64", entry("\"U8\"", "[99999999999999999999]", "[0,8]"), "non-negative"},
      {"shape product overflows to 8", entry("\"U8\"", "[4294967296,4294967296,8]", "[0,8]"), "too many elements"},
      {"bytes overflow", entry("\"F32\"", "[4611686018427387904]", "[0,8]"), "too many bytes"},
      {"zero hides an overflow", entry("\"U8\"", "[0,4611686018427387904,4]", "[0,0]"), "too many elements"},
      {"five axes", entry("\"U8\"", "[1,1,1,1,8]", "[0,8]"), "four axes"},
      {"size too small", entry("\"F32\"", "[4]", "[0,8]"), "takes 16 bytes"},
      {"size too large", entry("\"U8\"", "[4]", "[0,8]"), "takes 4 bytes"},
      {"offsets reversed", entry("\"U8\"", "[8]", "[8,0]"), "end before"},
      {"one offset", entry("\"U8\"", "[8]", "[8]"), "two non-negative"},
      {"three offsets", entry("\"U8\"", "[8]", "[0,8,8]"), "two non-negative"},
      {"negative offset", entry("\"U8\"", "[8]", "[-8,0]"), "two non-negative"},
      {"offset wraps", entry("\"U8\"", "[8]", "[18446744073709551608,0]"), "two non-negative"},
      {"hole at the start", entry("\"U8\"", "[4]", "[4,8]"), "hole"},
      {"hole between", two("[0,4]", "[5,9]"), "hole"},
      {"overlap", two("[0,4]", "[2,6]"), "overlap"},
      {"same bytes twice", two("[0,4]", "[0,4]"), "overlap"},
      {"uncovered end", entry("\"U8\"", "[4]", "[0,4]"), "cover 4"},
      {"beyond the end", entry("\"U8\"", "[9]", "[0,9]"), "the file has 8"},
      {"data without tensors", with_header("{}", d8), "cover 0"},
      {"metadata a string", with_header(R"({"__metadata__":"x"})", ""), "not an object"},
      {"metadata value a number", with_header(R"({"__metadata__":{"a":1}})", ""), "not a string"},
      {"metadata nested", with_header(R"({"__metadata__":{"a":{}}})", ""), "not a string"},
      {"code type of no tensor", with_header(R"({"__metadata__":{"octet_dtype:v":"e2m1"}})", ""), "names no tensor"},
      {"code type unknown", with_header(R"({"__metadata__":{"octet_dtype:w":"e9m9"},"w":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})", d8),
       "e9m9"},
      {"code type of another width",
       with_header(R"({"__metadata__":{"octet_dtype:w":"f32"},"w":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})", d8), "f32"},
      {"code type on floats", with_header(R"({"__metadata__":{"octet_dtype:w":"e2m1"},"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", d8),
       "e2m1"},
      {"control characters in a name", with_header(R"({"a\n\u001b[31m":7})", ""), R"("a\n\u001b[31m")"},
  };
}

TEST(Safetensors, HostileFilesAreRefusedWithAReason) {
  const TempDir dir;
  const auto table = hostile_files();
  ASSERT_GE(table.size(), 25u);
  for (const auto& h : table) {
    SCOPED_TRACE(h.what);
    spill(dir.path() / "f", h.file);
    const auto line = error_of(ExitCode::checkpoint, [&] { SafetensorsFile::open(dir.path() / "f"); });
    expect_contains(line, h.message);
    EXPECT_LT(line.size(), 600u);
  }
}

TEST(Safetensors, NotARegularFileIsRefusedWithoutBlocking) {
  const TempDir dir;
  ASSERT_EQ(::mkfifo((dir.path() / "pipe").c_str(), 0600), 0);
  expect_contains(error_of(ExitCode::checkpoint, [&] { SafetensorsFile::open(dir.path() / "pipe"); }), "not a regular file");
  expect_contains(error_of(ExitCode::checkpoint, [&] { SafetensorsFile::open(dir.path()); }), "not a regular file");
  expect_contains(error_of(ExitCode::checkpoint, [&] { SafetensorsFile::open(dir.path() / "absent"); }), "No such file");
}

// Any accepted header must describe exactly the bytes of the file.
TEST(Safetensors, MutatedHeadersNeverBreakTheInvariants) {
  std::vector<unsigned char> bytes(64);
  const TempDir dir;
  write_safetensors(dir.path() / "f",
                    {{"a", Dtype::f32, {2, 3}, bytes.data()}, {"b", Dtype::e2m1, {5}, bytes.data()}, {"c", Dtype::u8, {}, bytes.data()}},
                    {{"k", "v"}});
  const std::string content = slurp(dir.path() / "f");
  uint64_t length = 0;
  std::memcpy(&length, content.data(), 8);
  const std::string header = content.substr(8, length);
  const std::string alphabet =
      "{}[]\",:0123456789-.eE\\ \n\xff"
      "abcdFU8";
  std::mt19937 random(11);
  int accepted = 0;
  for (int i = 0; i < 60000; ++i) {
    std::string mutated = header;
    const int edits = 1 + static_cast<int>(random() % 3);
    for (int e = 0; e < edits; ++e) {
      const size_t at = random() % mutated.size();
      const char c = alphabet[random() % alphabet.size()];
      switch (random() % 3) {
        case 0: mutated[at] = c; break;
        case 1: mutated.insert(at, 1, c); break;
        default: mutated.erase(at, 1); break;
      }
    }
    const uint64_t file_bytes = 8 + mutated.size() + (content.size() - 8 - length);
    try {
      const auto parsed = parse_safetensors_header(mutated, file_bytes, "mutant");
      ++accepted;
      uint64_t at = 8 + mutated.size();
      for (const auto& t : parsed.tensors) {
        ASSERT_EQ(t.begin, at);
        ASSERT_EQ(t.end - t.begin, static_cast<uint64_t>(t.shape.elements()) * size_bytes(t.dtype));
        at = t.end;
      }
      ASSERT_EQ(at, file_bytes);
    } catch (const Error& e) {
      ASSERT_EQ(static_cast<int>(e.code), static_cast<int>(ExitCode::checkpoint)) << e.what();
    }
  }
  EXPECT_GT(accepted, 100);  // renamed tensors and changed metadata stay valid
}

}  // namespace
}  // namespace octet
