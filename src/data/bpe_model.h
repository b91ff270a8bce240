// The BPE model proper: bytes of one pre-token to ids.
//
// A word starts as its bytes; the pair of neighbours with the smallest rank (position in the merge list) is merged, the leftmost of equals,
// until no pair is in the list. Short words are scanned (their ranks fit a cache line or two), long ones use a heap: O(n log n).
// Source: Sennrich et al. 2016 (BPE); order of merges and ignore_merges as the `tokenizers` package has them.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/tokenizer_json.h"

namespace octet::data {

// Growing array of ids whose end may be written ahead of its size.
class TokenBuffer {
 public:
  void clear() { size_ = 0; }
  size_t size() const { return size_; }
  const int32_t* data() const { return ids_.data(); }
  // Room for `more` ids behind the end; advance() takes up what was written there.
  int32_t* room(size_t more) {
    if (ids_.size() < size_ + more) ids_.resize(std::max(2 * ids_.size(), size_ + more + 1024));
    return ids_.data() + size_;
  }
  void advance(size_t written) { size_ += written; }
  void push(int32_t id) {
    *room(1) = id;
    ++size_;
  }
  void append(const int32_t* ids, size_t count) {
    std::copy(ids, ids + count, room(count));
    size_ += count;
  }

 private:
  std::vector<int32_t> ids_;
  size_t size_ = 0;
};

// Working memory of encode_word; one a thread.
struct BpeScratch {
  std::vector<int32_t> ids;
  std::vector<uint32_t> ranks, next, previous;
  std::vector<uint64_t> heap;
};

class BpeModel {
 public:
  explicit BpeModel(const TokenizerJson& json);

  // Appends the ids of a word of one byte or more to `out`. Precondition: bytes of valid UTF-8 text.
  void encode_word(std::string_view bytes, BpeScratch& scratch, TokenBuffer& out) const;
  int32_t byte_id(unsigned char byte) const { return byte_ids_[byte]; }
  // Bytes of a token; empty for an id that no token of model.vocab has.
  std::string_view bytes(int32_t id) const;

 private:
  static constexpr uint32_t no_rank = UINT32_MAX;
  struct Slot {
    uint64_t pair;
    uint32_t rank;
  };
  static uint64_t pair_of(int32_t left, int32_t right) { return static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right); }
  static uint64_t mix(uint64_t pair) { return (pair ^ pair >> 29) * 0x9E3779B97F4A7C15u; }
  uint32_t rank(int32_t left, int32_t right) const {
    const uint64_t pair = pair_of(left, right);
    for (size_t i = mix(pair) >> shift_;; i = (i + 1) & mask_) {
      if (slots_[i].pair == pair) return slots_[i].rank;
      if (slots_[i].rank == no_rank) return no_rank;
    }
  }
  void add_merges(const std::vector<Merge>& merges);
  size_t merge_short(std::string_view bytes, int32_t* ids) const;
  void merge_long(std::string_view bytes, BpeScratch& scratch, TokenBuffer& out) const;

  std::vector<Slot> slots_;               // open addressing; rank no_rank marks a free one
  size_t mask_ = 0;
  int shift_ = 0;
  std::vector<int32_t> results_;          // by rank
  std::array<int32_t, 256> byte_ids_{};
  std::string bytes_;                     // of all tokens
  std::vector<uint32_t> begins_;          // by id, ids + 1
  bool ignore_merges_ = false;
  std::unordered_map<std::string_view, int32_t> whole_;  // only with ignore_merges; views of bytes_
};

}  // namespace octet::data
