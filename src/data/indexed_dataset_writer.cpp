#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include "core/check.h"
#include "data/indexed_dataset.h"

namespace octet::data {
namespace {
template <class T>
void put(OutputFile& file, T value) {
  file.write(&value, sizeof(T));
}
}  // namespace

IndexedDatasetWriter::IndexedDatasetWriter(const std::string& prefix, TokenType type)
    : IndexedDatasetWriter(prefix, type, Done{}) {}

IndexedDatasetWriter::IndexedDatasetWriter(const std::string& prefix, TokenType type, Done done)
    : prefix_(prefix), type_(type), bin_(prefix + ".bin", done.tokens * size_bytes(type)), idx_(prefix + ".idx"),
      lengths_(prefix + ".lengths", done.documents * 4), documents_(done.documents), tokens_(done.tokens) {}

template <class T>
void IndexedDatasetWriter::append_as(std::span<const int32_t> tokens) {
  std::array<T, 4096> values;
  for (size_t first = 0; first < tokens.size(); first += values.size()) {
    const size_t n = std::min(values.size(), tokens.size() - first);
    for (size_t i = 0; i < n; ++i) {
      const int32_t id = tokens[first + i];
      if (id < 0 || static_cast<int64_t>(id) > static_cast<int64_t>(std::numeric_limits<T>::max())) {
        throw Error(ExitCode::data, fmt::format("document {}: token id {} does not fit {}", documents_, id, name(type_)), prefix_ + ".bin",
                    "write it with a larger vocabulary size");
      }
      values[i] = static_cast<T>(id);
    }
    bin_.write(values.data(), n * sizeof(T));
  }
}

void IndexedDatasetWriter::append(std::span<const int32_t> tokens) {
  const auto more = static_cast<int64_t>(tokens.size());
  if (more > std::numeric_limits<int32_t>::max() - document_tokens_) {
    throw Error(ExitCode::data, fmt::format("document {} has 2^31 tokens or more; the format holds fewer", documents_), prefix_ + ".bin",
        "split the input into documents");
  }
  switch (type_) {
    case TokenType::u8: append_as<uint8_t>(tokens); break;
    case TokenType::i8: append_as<int8_t>(tokens); break;
    case TokenType::i16: append_as<int16_t>(tokens); break;
    case TokenType::u16: append_as<uint16_t>(tokens); break;
    case TokenType::i32: append_as<int32_t>(tokens); break;
    case TokenType::i64: append_as<int64_t>(tokens); break;
    case TokenType::u32: OCTET_CHECK(false, "an index has no code for uint32");
  }
  document_tokens_ += more;
  tokens_ += more;
}

void IndexedDatasetWriter::end_document() {
  put(lengths_, static_cast<int32_t>(document_tokens_));
  ++documents_;
  document_tokens_ = 0;
}

void IndexedDatasetWriter::each_length(const std::function<void(int32_t)>& visit) {
  std::vector<int32_t> lengths(size_t{1} << 16);
  for (int64_t first = 0; first < documents_; first += static_cast<int64_t>(lengths.size())) {
    const auto n = static_cast<size_t>(std::min(static_cast<int64_t>(lengths.size()), documents_ - first));
    lengths_.file().read_exact(lengths.data(), n * 4, static_cast<uint64_t>(first) * 4);
    for (size_t i = 0; i < n; ++i) visit(lengths[i]);
  }
}

void IndexedDatasetWriter::write_index() {
  idx_.write("MMIDIDX\0", 9);  // the literal's own end is the ninth byte
  put(idx_, uint64_t{1});
  put(idx_, static_cast<uint8_t>(type_));
  put(idx_, static_cast<uint64_t>(documents_));
  put(idx_, static_cast<uint64_t>(documents_ + 1));
  each_length([&](int32_t length) { put(idx_, length); });
  int64_t pointer = 0;
  each_length([&](int32_t length) {
    put(idx_, pointer);
    pointer += length * size_bytes(type_);
  });
  for (int64_t i = 0; i <= documents_; ++i) put(idx_, i);
}

void IndexedDatasetWriter::seal() {
  OCTET_CHECK(document_tokens_ == 0, "{} tokens of an open document", document_tokens_);
  lengths_.flush();
  write_index();
  bin_.sync();
  idx_.sync();
}

void IndexedDatasetWriter::publish(const std::function<void()>& before_index) {
  // .bin first: the pair exists once .idx does, for that is what a reader opens.
  bin_.commit();
  try {
    if (before_index) before_index();
    idx_.commit();
  } catch (...) {
    bin_.withdraw();
    throw;
  }
  sync_parent_directory(prefix_, ExitCode::data);
}

void IndexedDatasetWriter::finish() {
  seal();
  publish();
}

IndexedDatasetWriter::Done IndexedDatasetWriter::checkpoint() {
  OCTET_CHECK(document_tokens_ == 0, "{} tokens of an open document", document_tokens_);
  bin_.sync();
  lengths_.sync();
  return {documents_, tokens_};
}

void IndexedDatasetWriter::keep() {
  bin_.keep();
  lengths_.keep();
}

}  // namespace octet::data
