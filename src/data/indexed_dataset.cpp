#include "data/indexed_dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

namespace octet::data {
namespace {
constexpr std::array<unsigned char, 9> magic = {'M', 'M', 'I', 'D', 'I', 'D', 'X', 0, 0};
constexpr uint64_t header_bytes = 34;
const char* const rebuild = "build it again with 'octet data build' or copy it again";

template <class T>
T load(const unsigned char* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

void parse_lengths(const ByteReader& file, int64_t sequences, TokenLayout& layout) {
  const int64_t item = size_bytes(layout.type), most_tokens = std::numeric_limits<int64_t>::max() / item;
  layout.starts.reserve(static_cast<size_t>(sequences) + 1);
  each_value<int32_t>(file, header_bytes, sequences, [&](int64_t i, int32_t length) {
    if (length < 0) refuse_file(file.name, fmt::format("sequence {} has the negative length {}", i, length), rebuild);
    if (layout.tokens() > most_tokens - length) refuse_file(file.name, fmt::format("the lengths up to sequence {} exceed 2^63 bytes", i), rebuild);
    layout.starts.push_back(layout.tokens() + length);
  });
  each_value<int64_t>(file, header_bytes + 4 * static_cast<uint64_t>(sequences), sequences, [&](int64_t i, int64_t pointer) {
    const int64_t expected = layout.starts[static_cast<size_t>(i)] * item;
    if (pointer == expected) return;
    refuse_file(file.name, fmt::format("sequence {} points to byte {}, but the lengths before it end at byte {}", i, pointer, expected), rebuild);
  });
}

void parse_documents(const ByteReader& file, int64_t sequences, int64_t entries, TokenLayout& layout) {
  if (entries < 1) refuse_file(file.name, "has no document indices (the first must be 0)", rebuild);
  std::vector<int64_t>& ends = layout.document_ends;
  ends.clear();
  ends.reserve(static_cast<size_t>(entries));
  each_value<int64_t>(file, header_bytes + 12 * static_cast<uint64_t>(sequences), entries, [&](int64_t i, int64_t end) {
    if (i == 0 && end != 0) refuse_file(file.name, fmt::format("the first document index is {}, not 0", end), rebuild);
    if (i > 0 && (end < ends.back() || end > sequences)) {
      refuse_file(file.name, fmt::format("document index {} is {}, outside [{}, {}]", i, end, ends.back(), sequences), rebuild);
    }
    ends.push_back(end);
  });
  if (ends.back() != sequences) {
    refuse_file(file.name, fmt::format("the last document index is {}, but there are {} sequences", ends.back(), sequences), rebuild);
  }
}

void check_modes(const ByteReader& file, uint64_t offset, int64_t sequences) {
  each_value<int8_t>(file, offset, sequences, [&](int64_t i, int8_t mode) {
    if (mode == 0) return;
    refuse_file(file.name, fmt::format("sequence {} has mode {} (not text); only text sequences can be read", i, static_cast<int>(mode)),
        "give a set that has text only");
  });
}
}  // namespace

TokenLayout parse_megatron_index(const ByteReader& file) {
  const uint64_t bytes = file.bytes;
  if (bytes < header_bytes) refuse_file(file.name, fmt::format("has {} bytes, too few for the {}-byte header of a token index", bytes, header_bytes), rebuild);
  std::array<unsigned char, header_bytes> header;
  file.read_exact(0, header.data(), header.size());
  if (!std::equal(magic.begin(), magic.end(), header.begin())) refuse_file(file.name, "is not a Megatron token index (no MMIDIDX at its start)", rebuild);
  const uint64_t version = load<uint64_t>(&header[9]);
  if (version != 1) refuse_file(file.name, fmt::format("has format version {}; only version 1 is known", version), rebuild);
  const int code = header[17];
  if (code == 6 || code == 7) refuse_file(file.name, fmt::format("has the floating-point dtype code {}; tokens are integers", code), rebuild);
  if (code < 1 || code > 8) refuse_file(file.name, fmt::format("has the unknown dtype code {}; 1-5 and 8 are known", code), rebuild);
  TokenLayout layout;
  layout.type = static_cast<TokenType>(code);

  // Each count is compared with the file's size before it is multiplied or anything is allocated by it.
  const uint64_t sequences = load<uint64_t>(&header[18]), entries = load<uint64_t>(&header[26]), body = bytes - header_bytes;
  if (sequences > body / 12 || entries > body / 8 || sequences * 12 + entries * 8 > body) {
    refuse_file(file.name, fmt::format("is truncated: {} bytes cannot hold the {} sequences and {} document indices it announces", bytes, sequences, entries),
        rebuild);
  }
  const uint64_t rest = body - sequences * 12 - entries * 8;
  if (rest != 0 && rest != sequences) {
    refuse_file(file.name, fmt::format("has {} bytes beyond the {} sequences and {} document indices it announces", rest, sequences, entries), rebuild);
  }
  const auto s = static_cast<int64_t>(sequences), d = static_cast<int64_t>(entries);
  parse_lengths(file, s, layout);
  parse_documents(file, s, d, layout);
  if (rest != 0) check_modes(file, header_bytes + 12 * sequences + 8 * entries, s);
  return layout;
}

File open_megatron(const std::string& prefix, TokenLayout& layout) {
  const std::string idx_path = prefix + ".idx";
  const File idx = File::open_for_read(idx_path, ExitCode::data, "give the path without .idx/.bin; 'octet data build' makes both files");
  layout = parse_megatron_index(ByteReader::of(idx));
  File bin = File::open_for_read(prefix + ".bin", ExitCode::data,
      fmt::format("{} is there but its tokens are not; give the path without .idx/.bin, or build the pair again", idx_path));
  const auto have = static_cast<int64_t>(bin.size_bytes()), want = layout.tokens() * size_bytes(layout.type);
  if (have != want) {
    refuse_file(bin.path().string(), fmt::format("has {} bytes, but {} describes {} tokens of {} = {} bytes", have, idx_path, layout.tokens(),
        name(layout.type), want), rebuild);
  }
  return bin;
}

}  // namespace octet::data
