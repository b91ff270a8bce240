// Walks the fields of one serialized protocol-buffer message of untrusted bytes (protobuf.dev, "Encoding"), for the few messages that are read
// without their library. Wire types: 0 varint, 1 eight bytes, 2 length and bytes, 5 four bytes; groups are malformed.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace octet {

class ProtobufFields {
 public:
  // Called with `where` for a malformed message; must throw. truncated: a field reaches behind the message's end.
  using Malformed = void (*)(const std::string& where, bool truncated);

  // message and where must outlive this object.
  ProtobufFields(std::string_view message, const std::string& where, Malformed malformed) : rest_(message), where_(where), malformed_(malformed) {}

  // Goes to the next field; false at the end.
  bool next() {
    if (rest_.empty()) return false;
    const uint64_t key = varint();
    number = key >> 3;
    type = static_cast<int>(key & 7);
    switch (type) {
      case 0: value = varint(); break;
      case 1: bytes = take(8); break;
      case 2: bytes = take(varint()); break;
      case 5: bytes = take(4); break;
      default: malformed_(where_, false);
    }
    return true;
  }
  bool is(uint64_t wanted, int wanted_type) const { return number == wanted && type == wanted_type; }

  uint64_t number = 0, value = 0;   // value: of a varint
  int type = 0;
  std::string_view bytes;           // of the other types

 private:
  uint64_t varint() {
    uint64_t v = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<uint8_t>(take(1)[0]);
      v |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (!(byte & 0x80)) return v;
    }
    malformed_(where_, false);
    return 0;
  }
  std::string_view take(uint64_t n) {
    if (n > rest_.size()) malformed_(where_, true);
    const std::string_view out = rest_.substr(0, n);
    rest_.remove_prefix(n);
    return out;
  }

  std::string_view rest_;
  const std::string& where_;
  Malformed malformed_;
};

}  // namespace octet
