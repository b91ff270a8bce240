// Ids of words seen lately: bounded, one a thread. Text repeats its words (Zipf), so most need no merging.
#pragma once
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

namespace octet::data {

class BpeCache {
 public:
  static constexpr size_t most_bytes = 24, most_ids = 8;

  // One cache line an entry. The three words hold a word of up to 24 bytes, in parts that may overlap; with `bytes` they identify it.
  struct alignas(64) Entry {
    uint64_t key[3];
    uint8_t bytes, count;
    uint8_t unused[6];
    int32_t ids[most_ids];
  };
  static_assert(sizeof(Entry) == 64);

  struct Key {
    uint64_t part[3];
    uint8_t bytes;
    size_t hash;
  };

  BpeCache() : entries_(size_t{1} << log2_entries) {}

  // Precondition: 1 to most_bytes bytes.
  static Key key(std::string_view word) {
    const char* at = word.data();
    const size_t n = word.size();
    Key k{{0, 0, 0}, static_cast<uint8_t>(n), 0};
    if (n >= 8) {
      k.part[0] = load<uint64_t>(at);
      k.part[1] = n > 16 ? load<uint64_t>(at + 8) : 0;
      k.part[2] = load<uint64_t>(at + n - 8);
    } else if (n >= 4) {
      k.part[0] = load<uint32_t>(at) | static_cast<uint64_t>(load<uint32_t>(at + n - 4)) << 32;
    } else {
      const auto b = [&](size_t i) { return static_cast<uint64_t>(static_cast<unsigned char>(at[i])); };
      k.part[0] = b(0) | b(n / 2) << 8 | b(n - 1) << 16;
    }
    uint64_t h = (k.part[0] + n) * 0x9E3779B97F4A7C15u;
    h = (h ^ h >> 32 ^ k.part[1]) * 0xD6E8FEB86659FD93u;
    h = (h ^ h >> 32 ^ k.part[2]) * 0x9E3779B97F4A7C15u;
    k.hash = h >> (64 - log2_entries);
    return k;
  }

  const Entry* find(const Key& k) const {
    const Entry& first = entries_[k.hash];
    if (holds(first, k)) return &first;
    const Entry& second = entries_[k.hash ^ 1];
    return holds(second, k) ? &second : nullptr;
  }

  // Precondition: count <= most_ids. The entry that was there moves to the neighbour, whose entry is forgotten.
  void insert(const Key& k, const int32_t* ids, size_t count) {
    Entry& entry = entries_[k.hash];
    if (entry.bytes) entries_[k.hash ^ 1] = entry;
    std::memcpy(entry.key, k.part, sizeof(entry.key));
    entry.bytes = k.bytes;
    entry.count = static_cast<uint8_t>(count);
    std::memcpy(entry.ids, ids, count * sizeof(int32_t));
  }

 private:
  static constexpr int log2_entries = 15;   // 2 MiB
  template <class T>
  static T load(const char* at) {
    T value;
    std::memcpy(&value, at, sizeof(T));
    return value;
  }
  static bool holds(const Entry& e, const Key& k) {
    return e.key[0] == k.part[0] && e.key[1] == k.part[1] && e.key[2] == k.part[2] && e.bytes == k.bytes;
  }

  std::vector<Entry> entries_;
};

}  // namespace octet::data
