// Hostile SentencePiece models: what data/sentencepiece_check.h must keep from the library, and what it must let through.
#include "data/sentencepiece.h"

#include <sentencepiece_trainer.h>

#include <cstring>
#include <limits>
#include <unordered_map>

#include "unit/data/test_files.h"

namespace octet::data {
namespace {

void add_word(std::string& to, uint32_t value) {
  for (int i = 0; i < 4; ++i) to += static_cast<char>(value >> 8 * i & 0xFF);
}
std::string varint(uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  return out + static_cast<char>(value);
}
std::string field(uint32_t number, const std::string& bytes) { return varint(number << 3 | 2) + varint(bytes.size()) + bytes; }

std::string piece(const std::string& text, float score, char type = 1) {
  uint32_t bits = 0;
  std::memcpy(&bits, &score, sizeof(bits));
  std::string message = field(1, text) + '\x15';
  add_word(message, bits);
  return field(1, message + '\x18' + type);
}

// A double-array trie of 512 units: children of the root are in the second half.
struct Trie {
  std::vector<uint32_t> units = std::vector<uint32_t>(512, 0x80000000u);
  std::string texts = std::string("a\0", 2);

  static constexpr uint32_t root = 256;
  Trie() { link(0, '\0', root); }
  void link(uint32_t unit, char label, uint32_t children, bool ends_key = false) {
    units[unit] = static_cast<unsigned char>(label) | (ends_key ? 256u : 0u) | (unit ^ children) << 10;
  }
  std::string model(uint32_t spec = 3) const {
    std::string blob;
    add_word(blob, static_cast<uint32_t>(4 * units.size()));
    for (uint32_t unit : units) add_word(blob, unit);
    return model_of(blob + texts, spec);
  }
  static std::string model_of(const std::string& blob, uint32_t spec = 3) {
    return piece("<unk>", 0, 2) + piece("a", -1) + piece("\xE2\x96\x81", -2) + field(spec, field(2, blob));
  }
};

void refuse_model(const std::string& model, const std::string& what) {
  expect_error(ExitCode::config, "m: no SentencePiece model: " + what, [&] { SentencePieceModel::parse(model, "m"); });
}

TEST(SentencePieceCheck, NormalizationTables) {
  Trie good;
  good.link(Trie::root ^ 'A', 'A', 1, true);   // "A" becomes the text at 0: the value of unit 1
  good.units[1] = 0x80000000u;
  std::vector<int32_t> ids;
  SentencePieceModel::parse(good.model(), "m").encode("A", ids);
  EXPECT_EQ(ids, (std::vector{2, 1}));

  Trie outside = good, cycle = good, value = good, open = good, deep = good;
  outside.link(Trie::root ^ 'B', 'B', 512);
  refuse_model(outside.model(), "its normalization table leads outside itself");
  refuse_model(outside.model(5), "its normalization table leads outside itself");
  cycle.link(Trie::root ^ 'B', 'B', Trie::root);
  refuse_model(cycle.model(), "its normalization table has a cycle");
  value.units[1] = 0x80000000u | 2;
  refuse_model(value.model(), "its normalization table points behind its texts");
  open.texts = "a";
  refuse_model(open.model(), "the texts of its normalization table do not end");
  open.texts = std::string(257, 'x') + '\0';
  refuse_model(open.model(), "its normalization table replaces a character by more than 256 bytes");
  // 33 keys, each the beginning of the next: the library keeps 32. Every step has a block of its own.
  deep.units.resize(256 * 40, 0x80000000u);
  for (uint32_t i = 0; i < 33; ++i) deep.link((256 * (i + 1)) ^ 'A', 'A', 256 * (i + 2), true);
  refuse_model(deep.model(), "its normalization table has more than 32 keys in one");

  for (const std::string& blob : {std::string("x"), std::string(4, '\0') + "x", std::string("\x04\0\0\0abcd", 8), std::string("\xFF\xFF\xFF\x7F" "abc", 7)}) {
    refuse_model(Trie::model_of(blob), "its normalization table is damaged");
  }
  refuse_model(Trie::model_of(std::string("\x04\0\0\0\0\0\0\0x\0", 10)), "its normalization table leads outside itself");
}

TEST(SentencePieceCheck, PiecesAndMessages) {
  const std::string good = Trie::model_of("");
  EXPECT_EQ(SentencePieceModel::parse(good, "m").vocab_size(), 3);
  refuse_model(good + piece(std::string("b\0c", 3), -1), "a piece holds a NUL byte");
  refuse_model(good + piece("b", std::numeric_limits<float>::quiet_NaN()), "the score of a piece is not finite");
  refuse_model(good + piece("b", -std::numeric_limits<float>::infinity()), "the score of a piece is not finite");
  refuse_model(good.substr(0, good.size() - 1), "truncated, or not a well-formed message");
  refuse_model(good + "\x0B", "not a well-formed message");
  refuse_model(good + std::string(10, '\xFF'), "not a well-formed message");
  refuse_model(piece("a", 0), "Internal: unk is not defined");
}

class Sentences : public sentencepiece::SentenceIterator {
 public:
  bool done() const override { return at_ == sentences_.size(); }
  void Next() override { ++at_; }
  const std::string& value() const override { return sentences_[at_]; }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  std::vector<std::string> sentences_ = {"the cat sat on the mat", "a mat"};
  size_t at_ = 0;
};

TEST(SentencePieceCheck, RulesOfTheLibraryPass) {
  for (const char* rule : {"nmt_nfkc", "nmt_nfkc_cf", "nfkc", "nfkc_cf", "identity"}) {
    std::string model;
    Sentences sentences;
    const std::unordered_map<std::string, std::string> options = {{"vocab_size", "20"}, {"hard_vocab_limit", "false"}, {"normalization_rule_name", rule},
                                                                  {"minloglevel", "2"}, {"num_threads", "1"}};
    ASSERT_TRUE(sentencepiece::SentencePieceTrainer::Train(options, &sentences, &model).ok());
    const SentencePieceModel read = SentencePieceModel::parse(model, rule);
    std::vector<int32_t> narrow, wide;
    read.encode("cat", narrow);
    read.encode("\xEF\xBD\x83\xEF\xBD\x81\xEF\xBD\x94", wide);   // full-width
    EXPECT_EQ(narrow == wide, std::string(rule) != "identity") << rule;
  }
}

}  // namespace
}  // namespace octet::data
