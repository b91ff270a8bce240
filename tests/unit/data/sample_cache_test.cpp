#include "data/sample_cache.h"

#include <fmt/format.h>

#include "unit/data/test_files.h"

namespace octet::data {
namespace {

template <class T>
std::string npy(const std::string& descr, const std::string& shape, const std::vector<T>& values) {
  std::string header = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': {}, }}", descr, shape);
  while ((10 + header.size() + 1) % 64 != 0) header += ' ';
  header += '\n';
  std::string out("\x93NUMPY\x01\x00", 8);
  out += static_cast<char>(header.size() & 0xff);
  out += static_cast<char>(header.size() >> 8);
  return out + header + std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

ByteReader memory(const std::string& bytes, const std::string& name = "memory") {
  return ByteReader::of({reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size()}, name);
}

TEST(Npy, HeadersOfNumpy) {
  const std::string file = npy<int32_t>("<i4", "(3, 2)", {1, -2, 3, 4, 5, 6});
  const NpyHeader header = parse_npy_header(memory(file));
  EXPECT_EQ(header.descr, "<i4");
  EXPECT_EQ(header.shape, (std::vector<int64_t>{3, 2}));
  EXPECT_EQ(header.first_byte % 64, 0u);
  std::vector<int64_t> values;
  each_npy_value(memory(file), header, [&](int64_t, int64_t v) { values.push_back(v); });
  EXPECT_EQ(values, (std::vector<int64_t>{1, -2, 3, 4, 5, 6}));
  EXPECT_EQ(parse_npy_header(memory(npy<uint32_t>("<u4", "(0,)", {}))).elements, 0);
  EXPECT_EQ(parse_npy_header(memory(npy<int16_t>("<i2", "()", {7}))).elements, 1);
}

TEST(Npy, Hostile) {
  const std::string good = npy<int64_t>("<i8", "(2,)", {1, 2});
  const auto refuse = [](const std::string& part, const std::string& bytes) {
    expect_error(ExitCode::data, part, [&] { parse_npy_header(memory(bytes)); });
  };
  for (size_t bytes = 0; bytes < good.size(); ++bytes) refuse("memory", good.substr(0, bytes));
  refuse("another number than its shape", good + "x");
  std::string version = good;
  version[6] = 2;
  refuse("format version 1.0", version);
  refuse("another type", npy<float>("<f4", "(1,)", {1}));
  refuse("another type", npy<int32_t>(">i4", "(1,)", {1}));
  refuse("another type", npy<int64_t>("|O", "(1,)", {1}));
  refuse("another number than its shape", npy<int64_t>("<i8", "(4611686018427387904, 4)", {1}));
  refuse("another number than its shape", npy<int64_t>("<i8", "(2305843009213693952,)", {1}));
  refuse("whole numbers", npy<int64_t>("<i8", "(-1,)", {}));
  refuse("whole numbers", npy<int64_t>("<i8", "(99999999999999999999,)", {}));
  refuse("more than 4", npy<int64_t>("<i8", "(1,1,1,1,1)", {1}));
  std::string fortran = good;
  fortran.replace(fortran.find("False"), 5, "True ");
  refuse("C order", fortran);
  for (const char* part : {"{'descr'", "'shape'", "}", "("}) {
    std::string broken = good;
    broken.replace(broken.find(part), 1, "#");
    refuse("memory", broken);
  }
  // Every byte of the header, changed: read or refused, never a crash.
  for (size_t i = 0; i < good.size() - 16; ++i) {
    for (const char c : {'\0', '\'', ')', '9', '\xff'}) {
      std::string changed = good;
      changed[i] = c;
      try {
        parse_npy_header(memory(changed));
      } catch (const Error& error) {
        EXPECT_EQ(error.code, ExitCode::data);
      }
    }
  }
}

struct Cache : ::testing::Test {
  TemporaryDirectory directory;
  std::string prefix = directory / "set";
  // The reference case of 9 samples (ECOSYSTEM.md 1.4).
  std::vector<int32_t> documents = {2, 2, 4, 1, 0, 3, 4, 0, 1, 3};
  std::vector<int32_t> starts = {0, 0, 2, 0, 3, 0, 3, 4, 5, 0, 5, 4, 6, 1, 7, 1, 8, 2, 9, 1, 9, 5};
  std::vector<uint32_t> shuffle = {7, 3, 5, 1, 4, 8, 0, 2, 6, 9};

  TokenSource reference() {
    write_documents(prefix, {3, 5, 2, 7, 4}, [](int64_t s, int64_t p) { return static_cast<int32_t>(100 * s + p); });
    return TokenSource::open(prefix);
  }
  SampleIndices parse(const TokenSource& set, int64_t seq_len = 4, bool partial = false) const {
    const std::string d = npy("<i4", fmt::format("({},)", documents.size()), documents), s = npy("<i4", fmt::format("({}, 2)", starts.size() / 2), starts),
                      w = npy("<u4", fmt::format("({},)", shuffle.size()), shuffle);
    return parse_sample_cache(memory(d, "documents"), memory(s, "starts"), memory(w, "shuffle"), set, 0, set.sequences(), seq_len, partial);
  }
  void refuse(const std::string& part, const TokenSource& set) {
    expect_error(ExitCode::data, part, [&] { parse(set); });
  }
};

TEST_F(Cache, IsTheOrderItHolds) {
  const TokenSource set = reference();
  const GptDataset ours(set, 0, 5, 4, 9, 1234);
  GptDataset taken(set, 0, 5, 4, std::nullopt, 999);   // another seed and size: the cache decides
  taken.take_order(parse(set));
  EXPECT_EQ(taken.size(), ours.size());
  EXPECT_EQ(taken.epochs(), 2);
  EXPECT_NE(taken.order_fingerprint(), 0u);
  std::vector<int32_t> a(5), b(5);
  for (int64_t i = 0; i < ours.size(); ++i) {
    ours.sample(i, a.data());
    taken.sample(i, b.data());
    EXPECT_EQ(a, b);
    EXPECT_EQ(ours.sample_id(i), taken.sample_id(i));
  }
  expect_error(ExitCode::data, "has 10 samples; the run wants more", [&] { taken.sample(10, a.data()); });
  std::swap(shuffle[0], shuffle[1]);
  GptDataset other(set, 0, 5, 4, std::nullopt, 999);
  other.take_order(parse(set));
  EXPECT_NE(other.order_fingerprint(), taken.order_fingerprint());
  EXPECT_EQ(other.sample_id(0), ours.sample_id(1));
}

TEST_F(Cache, WideTypes) {
  const TokenSource set = reference();
  const std::vector<int64_t> wide_starts(starts.begin(), starts.end()), wide_shuffle(shuffle.begin(), shuffle.end());
  const std::string d = npy("<i4", "(10,)", documents), s = npy("<i8", "(11, 2)", wide_starts), w = npy("<i8", "(10,)", wide_shuffle);
  EXPECT_EQ(parse_sample_cache(memory(d), memory(s), memory(w), set, 0, 5, 4, false).shuffle, shuffle);
}

TEST_F(Cache, OfOtherDataIsRefused) {
  const TokenSource set = reference();
  const auto restore = [this, documents_ = documents, starts_ = starts, shuffle_ = shuffle] {
    documents = documents_;
    starts = starts_;
    shuffle = shuffle_;
  };
  documents[0] = 5;
  refuse("entry 0 is document 5", set);
  restore();
  documents[0] = -1;
  refuse("entry 0 is document -1", set);
  restore();
  documents[0] = 3;
  refuse("there more often", set);
  restore();
  documents.pop_back();
  refuse("no multiple of the 5", set);
  documents.clear();
  refuse("no multiple of the 5", set);
  restore();
  std::swap(documents[1], documents[2]);
  refuse("begins elsewhere", set);
  restore();
  starts[7] = 3;
  refuse("sample 3 begins elsewhere", set);
  restore();
  starts.resize(20);
  refuse("has 10 entries, but the stream of tokens has 10 samples", set);
  restore();
  shuffle[3] = 7;
  refuse("entry 3 is sample 7", set);
  restore();
  shuffle[3] = 10;
  refuse("entry 3 is sample 10", set);
  restore();
  shuffle.pop_back();
  refuse("has 9 samples, but the stream of tokens has 10", set);
  restore();
  expect_error(ExitCode::data, "has 11 entries", [&] { parse(set, 5); });
  const std::string wrong = npy<uint32_t>("<u4", "(10,)", std::vector<uint32_t>(10)), flat = npy("<i4", "(22,)", starts), d = npy("<i4", "(10,)", documents);
  expect_error(ExitCode::data, "documents: has the type <u4", [&] { parse_sample_cache(memory(wrong, "documents"), memory(flat), memory(wrong), set, 0, 5, 4, false); });
  expect_error(ExitCode::data, "starts: has the shape (22)", [&] { parse_sample_cache(memory(d), memory(flat, "starts"), memory(wrong), set, 0, 5, 4, false); });
  expect_error(ExitCode::data, "none-document_index.npy", [&] { read_sample_cache(directory / "none", set, 0, 5, 4, false); });
}

TEST_F(Cache, Blend) {
  const auto parse_blend = [](const std::vector<int16_t>& sources_of, const std::vector<int64_t>& samples_of, int64_t sources) {
    const std::string a = npy("<i2", fmt::format("({},)", sources_of.size()), sources_of), b = npy("<i8", fmt::format("({},)", samples_of.size()), samples_of);
    return parse_blend_cache(memory(a), memory(b), sources);
  };
  const std::vector<int16_t> order = {0, 1, 2, 0, 1};
  EXPECT_EQ(parse_blend(order, {0, 0, 0, 1, 1}, 3), order);
  expect_error(ExitCode::data, "sample 2 is of source 2, but data.train has 2", [&] { parse_blend(order, {0, 0, 0, 1, 1}, 2); });
  expect_error(ExitCode::data, "sample 3 of the blend is not the next of its source", [&] { parse_blend(order, {0, 0, 0, 2, 1}, 3); });
  expect_error(ExitCode::data, "has 4 samples, the dataset index has 5", [&] { parse_blend(order, {0, 0, 0, 1}, 3); });
  expect_error(ExitCode::data, "has 0 samples", [&] { parse_blend({}, {}, 3); });
  expect_error(ExitCode::data, "of source -1", [&] { parse_blend({-1}, {0}, 3); });
}

}  // namespace
}  // namespace octet::data
