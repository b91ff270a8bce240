#include "data/npy.h"

#include <fmt/format.h>

#include <charconv>
#include <cstring>

namespace octet::data {
namespace {
const char* const npy_fix = "give the .npy files that Megatron wrote, whole";

// Reads the dict literal; anything unexpected is refused.
class HeaderText {
 public:
  HeaderText(const std::string& name, std::string_view text) : name_(name), rest_(text) {}

  void parse(NpyHeader& out) {
    expect('{');
    while (!take('}')) {
      const std::string key = text();
      expect(':');
      if (key == "descr" && !descr_) {
        descr_ = true;
        out.descr = text();
      } else if (key == "fortran_order" && !order_) {
        order_ = true;
        if (!take("False")) bad("is not in C order");
      } else if (key == "shape" && !shape_) {
        shape_ = true;
        shape(out.shape);
      } else {
        bad("has an unknown or repeated key in its header");
      }
      if (!take(',')) {
        expect('}');
        break;
      }
    }
    space();
    if (!rest_.empty()) bad("has text behind its header");
    if (!descr_ || !order_ || !shape_) bad("lacks descr, fortran_order or shape in its header");
  }

 private:
  [[noreturn]] void bad(const std::string& what) const { refuse_file(name_, what, npy_fix); }
  void space() {
    while (!rest_.empty() && (rest_.front() == ' ' || rest_.front() == '\n')) rest_.remove_prefix(1);
  }
  bool take(std::string_view word) {
    space();
    if (!rest_.starts_with(word)) return false;
    rest_.remove_prefix(word.size());
    return true;
  }
  bool take(char c) { return take(std::string_view(&c, 1)); }
  void expect(char c) {
    if (!take(c)) bad(fmt::format("its header lacks a '{}'", c));
  }
  std::string text() {
    const char quote = take('\'') ? '\'' : '"';
    if (quote == '"') expect('"');
    const size_t end = rest_.find(quote);
    if (end == std::string_view::npos) bad("its header has an open string");
    std::string out(rest_.substr(0, end));
    rest_.remove_prefix(end + 1);
    return out;
  }
  void shape(std::vector<int64_t>& out) {
    expect('(');
    while (!take(')')) {
      space();
      int64_t value = -1;
      const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
      if (error != std::errc() || value < 0) bad("has a shape that is not of whole numbers");
      rest_.remove_prefix(static_cast<size_t>(end - rest_.data()));
      out.push_back(value);
      if (out.size() > 4) bad("has more than 4 dimensions");
      if (!take(',')) {
        expect(')');
        break;
      }
    }
  }

  const std::string& name_;
  std::string_view rest_;
  bool descr_ = false, order_ = false, shape_ = false;
};
}  // namespace

NpyHeader parse_npy_header(const ByteReader& reader) {
  constexpr uint64_t prefix_bytes = 10;
  constexpr std::string_view magic("\x93NUMPY\x01\x00", 8);
  std::array<char, prefix_bytes> prefix{};
  if (reader.bytes < prefix_bytes) refuse_file(reader.name, fmt::format("has {} bytes, too few for a .npy file", reader.bytes), npy_fix);
  reader.read_exact(0, prefix.data(), prefix.size());
  if (std::string_view(prefix.data(), magic.size()) != magic) refuse_file(reader.name, "is no .npy file of format version 1.0", npy_fix);
  uint16_t length = 0;
  std::memcpy(&length, &prefix[8], sizeof(length));
  NpyHeader header;
  header.first_byte = prefix_bytes + length;
  if (reader.bytes < header.first_byte) refuse_file(reader.name, "ends within its header", npy_fix);
  std::string text(length, '\0');
  if (length > 0) reader.read_exact(prefix_bytes, text.data(), text.size());
  HeaderText(reader.name, text).parse(header);

  int64_t item = 0;
  for (const auto& [descr, bytes] : {std::pair{"<i2", 2}, std::pair{"<i4", 4}, std::pair{"<i8", 8}, std::pair{"<u4", 4}}) {
    if (header.descr == descr) item = bytes;
  }
  if (item == 0) refuse_file(reader.name, "has another type than little-endian int16, int32, int64 or uint32", npy_fix);
  bool fits = true;
  for (int64_t n : header.shape) fits = fits && !__builtin_mul_overflow(header.elements, n, &header.elements);
  const uint64_t body = reader.bytes - header.first_byte;
  if (!fits || header.elements > std::numeric_limits<int64_t>::max() / item || static_cast<uint64_t>(header.elements * item) != body) {
    refuse_file(reader.name, fmt::format("has {} bytes of values, another number than its shape asks for", body), npy_fix);
  }
  return header;
}

}  // namespace octet::data
