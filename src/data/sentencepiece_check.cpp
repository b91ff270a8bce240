#include "data/sentencepiece_check.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "core/error.h"
#include "core/protobuf_fields.h"

namespace octet::data {
namespace {
constexpr size_t most_trie_bytes = size_t{4} << 20, most_replacement_bytes = 256;   // nmt_nfkc: 0.2 MB, 36 bytes
constexpr int most_prefixes = 32;

[[noreturn]] void bad_model(const std::string& what, const std::string& where) {
  throw Error(ExitCode::config, "no SentencePiece model: " + what, where, "give a .model file as SentencePiece writes it ('octet data train-tokenizer' does)");
}

uint32_t word_at(std::string_view bytes, size_t at) {
  uint32_t value = 0;
  std::memcpy(&value, bytes.data() + at, sizeof(value));
  return value;
}

// The fields of a message of the model.
struct Fields : ProtobufFields {
  Fields(std::string_view message, const std::string& where)
      : ProtobufFields(message, where, [](const std::string& file, bool truncated) { bad_model(truncated ? "truncated, or not a well-formed message" : "not a well-formed message", file); }) {}
};

void check_piece(std::string_view message, const std::string& where) {
  for (Fields f(message, where); f.next();) {
    if (f.is(1, 2) && f.bytes.find('\0') != std::string_view::npos) bad_model("a piece holds a NUL byte", where);
    if (f.is(2, 5) && !std::isfinite(std::bit_cast<float>(word_at(f.bytes, 0)))) bad_model("the score of a piece is not finite", where);
  }
}

class Trie {
 public:
  Trie(std::string_view units, std::string_view texts, const std::string& where)
      : units_(units), texts_(texts), where_(where), prefixes_(units.size() / 4, unknown) {}

  // Depth first from unit 0; prefixes_[u] becomes the most keys that end below u on one way down.
  void check() {
    struct Visit {
      uint32_t unit, children, next = 0;
    };
    std::vector<Visit> way{{0, children(0)}};
    prefixes_[0] = 0;
    open_.assign(prefixes_.size(), false);
    open_[0] = true;
    while (!way.empty()) {
      Visit& top = way.back();
      if (top.next == 256) {
        const uint32_t done = top.unit;
        open_[done] = false;
        way.pop_back();
        if (!way.empty()) add(way.back().unit, done);
        continue;
      }
      const uint32_t child = top.children ^ top.next;
      const bool is_child = (unit(child) & 0x800000FFu) == top.next++;
      if (!is_child) continue;
      if (open_[child]) bad_model("its normalization table has a cycle", where_);
      if (prefixes_[child] != unknown) {
        add(top.unit, child);
        continue;
      }
      prefixes_[child] = 0;
      open_[child] = true;
      if (ends_key(child)) check_value(unit(children(child)) & 0x7FFFFFFFu);
      way.push_back({child, children(child)});
    }
  }

 private:
  static constexpr int8_t unknown = -1;

  uint32_t unit(uint32_t at) const { return word_at(units_, size_t{4} * at); }
  bool ends_key(uint32_t at) const { return unit(at) >> 8 & 1; }
  // The block of 256 units that holds the children of a unit, all inside the trie.
  uint32_t children(uint32_t at) const {
    const uint32_t u = unit(at), to = at ^ (u >> 10) << ((u & (1u << 9)) >> 6);
    if ((to | 0xFFu) >= prefixes_.size()) bad_model("its normalization table leads outside itself", where_);
    return to;
  }
  void add(uint32_t parent, uint32_t child) {
    const int below = prefixes_[child] + (ends_key(child) ? 1 : 0);
    if (below > most_prefixes) bad_model(fmt::format("its normalization table has more than {} keys in one", most_prefixes), where_);
    if (below > prefixes_[parent]) prefixes_[parent] = static_cast<int8_t>(below);
  }
  void check_value(uint32_t at) const {
    if (at >= texts_.size()) bad_model("its normalization table points behind its texts", where_);
    if (texts_.substr(at, most_replacement_bytes + 1).find('\0') == std::string_view::npos) {
      bad_model(fmt::format("its normalization table replaces a character by more than {} bytes", most_replacement_bytes), where_);
    }
  }

  std::string_view units_, texts_;
  const std::string& where_;
  std::vector<int8_t> prefixes_;
  std::vector<bool> open_;   // on the way that is being walked
};

void check_charsmap(std::string_view blob, const std::string& where) {
  if (blob.empty()) return;   // identity
  const size_t size = blob.size() < 4 ? 0 : word_at(blob, 0);
  if (size == 0 || size % 4 != 0 || size > most_trie_bytes || size >= blob.size() - 4) bad_model("its normalization table is damaged", where);
  const std::string_view texts = blob.substr(4 + size);
  if (texts.back() != '\0') bad_model("the texts of its normalization table do not end", where);
  Trie(blob.substr(4, size), texts, where).check();
}
}  // namespace

void check_sentencepiece_model(std::string_view model, const std::string& where) {
  for (Fields f(model, where); f.next();) {
    if (f.is(1, 2)) check_piece(f.bytes, where);
    if (!f.is(3, 2) && !f.is(5, 2)) continue;
    for (Fields spec(f.bytes, where); spec.next();) {
      if (spec.is(2, 2)) check_charsmap(spec.bytes, where);
    }
  }
}

}  // namespace octet::data
