#include "data/indexed_dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>

#include "core/check.h"

namespace octet::data {
static_assert(std::endian::native == std::endian::little, "token files are little-endian and read by memcpy");

namespace {
constexpr std::array<unsigned char, 9> magic = {'M', 'M', 'I', 'D', 'I', 'D', 'X', 0, 0};
constexpr int64_t header_bytes = 34;
constexpr int64_t piece = 4096;  // values read at once
const char* const rebuild = "build it again with 'octet data build' or copy it again";

template <class T>
T load(const unsigned char* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

[[noreturn]] void refuse(const File& file, const std::string& what, const char* fix = rebuild) {
  throw Error(ExitCode::data, what, file.path().string(), fix);
}

// Calls visit(i, value) for the `count` little-endian values at `offset` of the file.
template <class T, class Visit>
void each_value(const File& file, int64_t offset, int64_t count, Visit&& visit) {
  std::array<T, static_cast<size_t>(piece)> values;
  for (int64_t first = 0; first < count; first += piece) {
    const int64_t n = std::min(piece, count - first);
    file.read_exact(values.data(), static_cast<size_t>(n) * sizeof(T), static_cast<uint64_t>(offset) + static_cast<uint64_t>(first) * sizeof(T));
    for (int64_t i = 0; i < n; ++i) visit(first + i, values[static_cast<size_t>(i)]);
  }
}

template <class T>
void widen(const unsigned char* from, int64_t count, int64_t* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<int64_t>(load<T>(from + static_cast<size_t>(i) * sizeof(T)));
}
}  // namespace

// By dtype code; a TokenType is one of the known codes from the moment it is parsed.
int64_t size_bytes(TokenType type) {
  constexpr std::array<int64_t, 9> bytes = {0, 1, 1, 2, 4, 8, 0, 0, 2};
  return bytes[static_cast<size_t>(type)];
}

std::string_view name(TokenType type) {
  constexpr std::array<std::string_view, 9> names = {"", "uint8", "int8", "int16", "int32", "int64", "", "", "uint16"};
  return names[static_cast<size_t>(type)];
}

TokenType token_type_for(int64_t vocab_size) { return vocab_size < 65500 ? TokenType::u16 : TokenType::i32; }

IndexedDataset IndexedDataset::open(const std::string& prefix) {
  IndexedDataset set;
  set.prefix_ = prefix;
  const std::string idx_path = prefix + ".idx";
  set.parse_index(File::open_for_read(idx_path, ExitCode::data, "give the path without .idx/.bin; 'octet data build' makes both files"));
  set.bin_ = File::open_for_read(prefix + ".bin", ExitCode::data,
      fmt::format("{} is there but its tokens are not; give the path without .idx/.bin, or build the pair again", idx_path));
  const auto have = static_cast<int64_t>(set.bin_.size_bytes()), want = set.tokens() * octet::data::size_bytes(set.type_);
  if (have != want) {
    refuse(set.bin_, fmt::format("has {} bytes, but {} describes {} tokens of {} = {} bytes", have, idx_path, set.tokens(),
        octet::data::name(set.type_), want));
  }
  return set;
}

void IndexedDataset::parse_index(const File& file) {
  const auto bytes = static_cast<int64_t>(file.size_bytes());
  if (bytes < header_bytes) refuse(file, fmt::format("has {} bytes, too few for the {}-byte header of a token index", bytes, header_bytes));
  std::array<unsigned char, header_bytes> header;
  file.read_exact(header.data(), header.size(), 0);
  if (!std::equal(magic.begin(), magic.end(), header.begin())) refuse(file, "is not a Megatron token index (no MMIDIDX at its start)");
  const uint64_t version = load<uint64_t>(&header[9]);
  if (version != 1) refuse(file, fmt::format("has format version {}; only version 1 is known", version));
  const int code = header[17];
  if (code == 6 || code == 7) refuse(file, fmt::format("has the floating-point dtype code {}; tokens are integers", code));
  if (code < 1 || code > 8) refuse(file, fmt::format("has the unknown dtype code {}; 1-5 and 8 are known", code));
  type_ = static_cast<TokenType>(code);

  // Each count is compared with the file's size before it is multiplied or anything is allocated by it.
  const uint64_t sequences = load<uint64_t>(&header[18]), entries = load<uint64_t>(&header[26]);
  const auto body = static_cast<uint64_t>(bytes - header_bytes);
  if (sequences > body / 12 || entries > body / 8 || sequences * 12 + entries * 8 > body) {
    refuse(file, fmt::format("is truncated: {} bytes cannot hold the {} sequences and {} document indices it announces", bytes, sequences, entries));
  }
  const uint64_t rest = body - sequences * 12 - entries * 8;
  if (rest != 0 && rest != sequences) {
    refuse(file, fmt::format("has {} bytes beyond the {} sequences and {} document indices it announces", rest, sequences, entries));
  }
  const auto s = static_cast<int64_t>(sequences), d = static_cast<int64_t>(entries);
  parse_lengths(file, s);
  parse_documents(file, s, d);
  if (rest != 0) check_modes(file, header_bytes + 12 * s + 8 * d, s);
}

void IndexedDataset::parse_lengths(const File& file, int64_t sequences) {
  const int64_t item = octet::data::size_bytes(type_);
  const int64_t most_tokens = std::numeric_limits<int64_t>::max() / item;
  starts_.clear();
  starts_.reserve(at(sequences) + 1);
  starts_.push_back(0);
  each_value<int32_t>(file, header_bytes, sequences, [&](int64_t i, int32_t length) {
    if (length < 0) refuse(file, fmt::format("sequence {} has the negative length {}", i, length));
    if (starts_.back() > most_tokens - length) refuse(file, fmt::format("the lengths up to sequence {} exceed 2^63 bytes", i));
    starts_.push_back(starts_.back() + length);
  });
  each_value<int64_t>(file, header_bytes + 4 * sequences, sequences, [&](int64_t i, int64_t pointer) {
    const int64_t expected = starts_[at(i)] * item;
    if (pointer != expected) refuse(file, fmt::format("sequence {} points to byte {}, but the lengths before it end at byte {}", i, pointer,
        expected));
  });
}

void IndexedDataset::parse_documents(const File& file, int64_t sequences, int64_t entries) {
  if (entries < 1) refuse(file, "has no document indices (the first must be 0)");
  document_ends_.clear();
  document_ends_.reserve(at(entries));
  each_value<int64_t>(file, header_bytes + 12 * sequences, entries, [&](int64_t i, int64_t end) {
    if (i == 0 && end != 0) refuse(file, fmt::format("the first document index is {}, not 0", end));
    if (i > 0 && (end < document_ends_.back() || end > sequences)) {
      refuse(file, fmt::format("document index {} is {}, outside [{}, {}]", i, end, document_ends_.back(), sequences));
    }
    document_ends_.push_back(end);
  });
  if (document_ends_.back() != sequences) refuse(file, fmt::format("the last document index is {}, but there are {} sequences",
      document_ends_.back(), sequences));
}

void IndexedDataset::check_modes(const File& file, int64_t offset, int64_t sequences) const {
  each_value<int8_t>(file, offset, sequences, [&](int64_t i, int8_t mode) {
    if (mode != 0) {
      refuse(file, fmt::format("sequence {} has mode {} (not text); only text sequences can be read", i, static_cast<int>(mode)),
          "give a set that has text only");
    }
  });
}

int64_t IndexedDataset::sequence_of(int64_t position) const {
  OCTET_CHECK(position >= 0 && position < tokens(), "token {} of {}", position, tokens());
  return std::upper_bound(starts_.begin(), starts_.end(), position) - starts_.begin() - 1;
}

void IndexedDataset::read_ids(int64_t position, int64_t count, int64_t* out) const {
  OCTET_CHECK(count <= piece, "{} tokens at once", count);
  std::array<unsigned char, static_cast<size_t>(piece) * 8> raw;
  const int64_t item = octet::data::size_bytes(type_);
  bin_.read_exact(raw.data(), static_cast<size_t>(count * item), static_cast<uint64_t>(position * item));
  switch (type_) {
    case TokenType::u8: return widen<uint8_t>(raw.data(), count, out);
    case TokenType::i8: return widen<int8_t>(raw.data(), count, out);
    case TokenType::i16: return widen<int16_t>(raw.data(), count, out);
    case TokenType::u16: return widen<uint16_t>(raw.data(), count, out);
    case TokenType::i32: return widen<int32_t>(raw.data(), count, out);
    case TokenType::i64: return widen<int64_t>(raw.data(), count, out);
  }
}

void IndexedDataset::read_flat(int64_t position, int64_t count, int32_t* out) const {
  OCTET_CHECK(position >= 0 && count >= 0 && position <= tokens() && count <= tokens() - position, "tokens [{}, +{}) of {}", position, count,
      tokens());
  std::array<int64_t, static_cast<size_t>(piece)> ids;
  for (int64_t done = 0; done < count; done += piece) {
    const int64_t n = std::min(piece, count - done);
    read_ids(position + done, n, ids.data());
    for (int64_t i = 0; i < n; ++i) {
      const int64_t id = ids[at(i)];
      if (id != static_cast<int32_t>(id)) throw_bad_token(position + done + i, id, int64_t{1} << 31);
      out[done + i] = static_cast<int32_t>(id);
    }
  }
}

void IndexedDataset::read(int64_t sequence, int64_t offset, int64_t count, int32_t* out) const {
  OCTET_CHECK(sequence >= 0 && sequence < sequences(), "sequence {} of {}", sequence, sequences());
  OCTET_CHECK(offset >= 0 && count >= 0 && offset <= length(sequence) && count <= length(sequence) - offset,
      "tokens [{}, +{}) of the {} of sequence {}",
              offset, count, length(sequence), sequence);
  read_flat(start(sequence) + offset, count, out);
}

void IndexedDataset::scan(const std::function<void(int64_t, std::span<const int64_t>)>& visit) const {
  std::array<int64_t, static_cast<size_t>(piece)> ids;
  for (int64_t position = 0; position < tokens(); position += piece) {
    const int64_t n = std::min(piece, tokens() - position);
    read_ids(position, n, ids.data());
    visit(position, std::span<const int64_t>(ids.data(), static_cast<size_t>(n)));
  }
}

int64_t IndexedDataset::max_token() const {
  int64_t largest = tokens() > 0 ? std::numeric_limits<int64_t>::min() : -1;
  scan([&](int64_t, std::span<const int64_t> ids) { largest = std::max(largest, *std::max_element(ids.begin(), ids.end())); });
  return largest;
}

void IndexedDataset::check_tokens(int64_t vocab_size) const {
  scan([&](int64_t position, std::span<const int64_t> ids) {
    for (size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] < 0 || ids[i] >= vocab_size) throw_bad_token(position + static_cast<int64_t>(i), ids[i], vocab_size);
    }
  });
}

void IndexedDataset::throw_bad_token(int64_t position, int64_t id, int64_t vocab_size) const {
  const int64_t sequence = sequence_of(position);
  throw Error(ExitCode::data, fmt::format("sequence {}, position {}: token id {} is outside the vocabulary of {} ids", sequence,
      position - start(sequence), id, vocab_size),
              bin_path(), "the tokens were made for another vocabulary: set vocab_size to theirs or build the files with the model's tokenizer");
}

}  // namespace octet::data
