#include "data/tokenizer_json.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <limits>
#include <optional>
#include <set>
#include <unordered_map>

#include "core/error.h"

namespace octet::data {
namespace {
namespace dom = simdjson::dom;
constexpr int most_nesting = 8;   // of Sequence in Sequence
constexpr size_t most_steps = 64;  // of normalizers and of pre-tokenizers: each costs a pass over the text
constexpr size_t shown_bytes = 60;

std::string shown(std::string_view text) {
  std::string out = "\"";
  for (char c : text.substr(0, shown_bytes)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7F) out += fmt::format("\\x{:02x}", byte);
    else out += c;
  }
  return out + (text.size() > shown_bytes ? "...\"" : "\"");
}

// A value and how to name it.
class Node {
 public:
  Node(dom::element value, std::string path, const std::string& where) : value_(value), path_(std::move(path)), where_(where) {}

  [[noreturn]] void fail(const std::string& what, const std::string& fix = "give a tokenizer.json of a byte-level BPE tokenizer") const {
    throw Error(ExitCode::config, path_.empty() ? what : path_ + ": " + what, where_, fix);
  }
  const std::string& path() const { return path_; }
  bool is_null() const { return value_.is_null(); }
  bool is_string() const { return value_.is_string(); }
  bool is_array() const { return value_.is_array(); }

  dom::object object() const { return get<dom::object>("an object"); }
  dom::array array() const { return get<dom::array>("an array"); }
  std::string_view string() const { return get<std::string_view>("a string"); }
  bool boolean() const { return get<bool>("true or false"); }
  int32_t id() const {
    const auto value = get<int64_t>("a whole number");
    if (value < 0 || value > std::numeric_limits<int32_t>::max()) fail(fmt::format("{} is no token id", value));
    return static_cast<int32_t>(value);
  }

  std::optional<Node> find(std::string_view key) const {
    std::optional<Node> found;
    for (const auto& member : object()) {
      if (member.key != key) continue;
      if (found) fail(fmt::format("the key '{}' occurs more than once", key));
      found.emplace(member.value, path_.empty() ? std::string(key) : path_ + "." + std::string(key), where_);
    }
    return found;
  }
  Node at(std::string_view key) const {
    auto found = find(key);
    if (!found) fail(fmt::format("the key '{}' is missing", key));
    return std::move(*found);
  }
  bool flag(std::string_view key, bool otherwise) const {
    const auto found = find(key);
    return found ? found->boolean() : otherwise;
  }
  void only(std::initializer_list<std::string_view> keys) const {
    for (const auto& member : object()) {
      if (std::find(keys.begin(), keys.end(), member.key) == keys.end()) fail(fmt::format("unknown key {}", shown(member.key)));
    }
  }
  template <class Visit>
  void each(Visit&& visit) const {
    size_t i = 0;
    for (dom::element value : array()) visit(Node(value, fmt::format("{}[{}]", path_, i++), where_));
  }

 private:
  template <class T>
  T get(const char* wanted) const {
    T out;
    if (value_.get(out) != simdjson::SUCCESS) fail(fmt::format("must be {}", wanted));
    return out;
  }

  dom::element value_;
  std::string path_;
  const std::string& where_;
};

void parse_normalizer(const Node& node, std::vector<NormalForm>& out, int depth) {
  if (node.is_null()) return;
  const std::string_view type = node.at("type").string();
  if (type == "Sequence") {
    node.only({"type", "normalizers"});
    if (depth == most_nesting) node.fail("is nested too deeply");
    node.at("normalizers").each([&](const Node& item) { parse_normalizer(item, out, depth + 1); });
    return;
  }
  node.only({"type"});
  if (out.size() == most_steps) node.fail(fmt::format("is more than {} steps", most_steps));
  if (type == "NFC") out.push_back(NormalForm::nfc);
  else if (type == "NFD") out.push_back(NormalForm::nfd);
  else if (type == "NFKC") out.push_back(NormalForm::nfkc);
  else if (type == "NFKD") out.push_back(NormalForm::nfkd);
  else node.at("type").fail(shown(type) + " is not supported", "supported normalizers: NFC, NFD, NFKC, NFKD, Sequence");
}

SplitBehavior split_behavior(const Node& node) {
  const std::string_view name = node.string();
  if (name == "Removed") return SplitBehavior::removed;
  if (name == "Isolated") return SplitBehavior::isolated;
  if (name == "MergedWithPrevious") return SplitBehavior::merged_with_previous;
  if (name == "MergedWithNext") return SplitBehavior::merged_with_next;
  if (name == "Contiguous") return SplitBehavior::contiguous;
  node.fail(shown(name) + " is no behavior", "give Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
}

SplitStep parse_split(const Node& node) {
  node.only({"type", "pattern", "behavior", "invert"});
  SplitStep step;
  const Node pattern = node.at("pattern");
  pattern.only({"Regex", "String"});
  const auto regex = pattern.find("Regex"), literal = pattern.find("String");
  if (regex.has_value() == literal.has_value()) pattern.fail("must have one of the keys Regex and String");
  step.is_regex = regex.has_value();
  const Node& text = regex ? *regex : *literal;
  step.pattern = text.string();
  step.where = text.path();
  if (step.pattern.empty()) text.fail("is empty");
  step.behavior = split_behavior(node.at("behavior"));
  step.invert = node.at("invert").boolean();
  return step;
}

struct PreTokenizerParser {
  TokenizerJson& out;
  bool byte_level = false;

  void parse(const Node& node, int depth) {
    const std::string_view type = node.at("type").string();
    if (type == "Sequence") {
      node.only({"type", "pretokenizers"});
      if (depth == most_nesting) node.fail("is nested too deeply");
      node.at("pretokenizers").each([&](const Node& item) { parse(item, depth + 1); });
      return;
    }
    if (out.splits.size() == most_steps && type != "ByteLevel") node.fail(fmt::format("is more than {} steps", most_steps));
    if (byte_level) node.fail("a step behind ByteLevel is not supported", "ByteLevel must be the last pre-tokenizer");
    if (type == "Split") {
      out.splits.emplace_back(parse_split(node));
    } else if (type == "Digits") {
      node.only({"type", "individual_digits"});
      out.splits.emplace_back(DigitsStep{node.at("individual_digits").boolean()});
    } else if (type == "ByteLevel") {
      node.only({"type", "add_prefix_space", "trim_offsets", "use_regex"});  // trim_offsets changes offsets, not ids
      out.byte_level = {node.at("add_prefix_space").boolean(), node.flag("use_regex", true)};
      byte_level = true;
    } else {
      node.at("type").fail(shown(type) + " is not supported", "supported pre-tokenizers: ByteLevel, Split, Digits, Sequence");
    }
  }
};

class ModelParser {
 public:
  ModelParser(const Node& model, TokenizerJson& out) : model_(model), out_(out) {}

  void parse() {
    if (const auto type = model_.find("type"); type && type->string() != "BPE") {
      type->fail(shown(type->string()) + " is not supported", "supported models: BPE (byte-level); SentencePiece models as sentencepiece:FILE");
    }
    model_.only({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", "byte_fallback", "ignore_merges",
                 "vocab", "merges"});
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      const auto affix = model_.find(key);
      if (affix && !affix->is_null() && !affix->string().empty()) affix->fail("is not supported unless null or empty");
    }
    const auto dropout = model_.find("dropout");
    if (dropout && !dropout->is_null()) dropout->fail("is not supported unless null", "data is encoded without dropout; set it to null");
    // unk_token, fuse_unk and byte_fallback act on characters outside the vocabulary; check_alphabet makes sure that there are none.
    out_.ignore_merges = model_.flag("ignore_merges", false);
    parse_vocab();
    check_alphabet();
    parse_merges();
  }
  std::optional<int32_t> id(std::string_view token) const {
    const auto found = ids_.find(token);
    return found == ids_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  void parse_vocab() {
    const Node vocab = model_.at("vocab");
    std::vector<int32_t> all;
    for (const auto& member : vocab.object()) {
      int64_t id = 0;
      if (member.value.get(id) != simdjson::SUCCESS || id < 0 || id > std::numeric_limits<int32_t>::max()) {
        vocab.fail(fmt::format("the value of {} is no token id", shown(member.key)));
      }
      if (!ids_.emplace(member.key, static_cast<int32_t>(id)).second) vocab.fail(fmt::format("the token {} occurs twice", shown(member.key)));
      out_.vocab.emplace_back(member.key, static_cast<int32_t>(id));
      all.push_back(static_cast<int32_t>(id));
    }
    if (all.empty()) vocab.fail("is empty");
    std::sort(all.begin(), all.end());
    const auto twice = std::adjacent_find(all.begin(), all.end());
    if (twice != all.end()) vocab.fail(fmt::format("two tokens have the id {}", *twice));
    // Tables are indexed by id; a few holes are usual, a small file with huge ids is not.
    if (static_cast<size_t>(all.back()) > 2 * all.size() + 65536) vocab.fail(fmt::format("id {} is out of proportion to {} tokens", all.back(), all.size()));
    out_.vocab_size = int64_t{all.back()} + 1;
  }

  void check_alphabet() const {
    for (int byte = 0; byte < 256; ++byte) {
      if (byte == 0xC0 || byte == 0xC1 || byte >= 0xF5) continue;  // never in UTF-8
      if (id(byte_level_char(static_cast<unsigned char>(byte)))) continue;
      model_.at("vocab").fail(fmt::format("has no token for the byte 0x{:02X}, so that text with it would be lost", byte),
                              "train the tokenizer with the whole byte-level alphabet (pre_tokenizers.ByteLevel.alphabet())");
    }
  }

  void parse_merges() {
    const Node merges = model_.at("merges");
    std::string joined;
    size_t number = 0;
    for (dom::element item : merges.array()) {
      const size_t i = number++;
      const auto fail = [&](const std::string& what) { merges.fail(fmt::format("entry {} {}", i, what)); };
      std::string_view left, right, text;
      dom::array pair;
      if (item.get(text) == simdjson::SUCCESS) {
        if (text.starts_with("#version")) continue;  // as in merges.txt
        const size_t blank = text.find(' ');
        if (blank == std::string_view::npos || text.find(' ', blank + 1) != std::string_view::npos) fail("must be two tokens with one blank between");
        left = text.substr(0, blank);
        right = text.substr(blank + 1);
      } else if (item.get(pair) != simdjson::SUCCESS || pair.size() != 2 || pair.at(0).get(left) != simdjson::SUCCESS ||
                 pair.at(1).get(right) != simdjson::SUCCESS) {
        fail("must be a string or a pair of strings");
      }
      joined.assign(left).append(right);
      const auto left_id = id(left), right_id = id(right), result = id(joined);
      if (!left_id || !right_id || !result) fail(fmt::format("names {}, which is not in model.vocab", shown(!left_id ? left : !right_id ? right : joined)));
      out_.merges.push_back({*left_id, *right_id, *result});
    }
  }

  const Node& model_;
  TokenizerJson& out_;
  std::unordered_map<std::string_view, int32_t> ids_;
};

// Ids are given as the package gives them: that of the vocabulary if the token is there, else the next free one. The file must agree.
void parse_added_tokens(const Node& list, const ModelParser& model, TokenizerJson& out) {
  std::set<std::string> seen;
  const auto vocab_tokens = static_cast<int64_t>(out.vocab.size());
  int64_t next = vocab_tokens;
  list.each([&](const Node& node) {
    node.only({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    AddedToken token;
    token.id = node.at("id").id();
    token.content = node.at("content").string();
    token.single_word = node.at("single_word").boolean();
    token.lstrip = node.at("lstrip").boolean();
    token.rstrip = node.at("rstrip").boolean();
    token.normalized = node.at("normalized").boolean();
    token.special = node.at("special").boolean();
    if (token.content.empty()) node.at("content").fail("is empty");
    if (!seen.insert(token.content).second) node.at("content").fail(shown(token.content) + " is there twice");
    const auto known = model.id(token.content);
    const int64_t expected = known ? *known : next++;
    if (token.id != expected) {
      node.at("id").fail(fmt::format("is {}, but the tokenizers package gives this token {}", token.id, expected),
                         "save the tokenizer again with the tokenizers package");
    }
    out.vocab_size = std::max(out.vocab_size, expected + 1);
    out.added_tokens.push_back(std::move(token));
  });
  // With holes in the vocabulary's ids a new token could get one that is taken.
  if (next > vocab_tokens) {
    for (const auto& [token, id] : out.vocab) {
      if (id >= vocab_tokens && id < next) list.fail(fmt::format("the id {} of an added token is that of {} in model.vocab", id, shown(token)));
    }
  }
}
}  // namespace

TokenizerJson parse_tokenizer_json(std::string_view text, const std::string& where) {
  if (text.size() > most_tokenizer_json_bytes) {
    throw Error(ExitCode::config, fmt::format("has {} bytes, at most {} are read", text.size(), most_tokenizer_json_bytes), where, "give a tokenizer.json");
  }
  dom::parser parser;
  const simdjson::padded_string padded(text.data(), text.size());
  dom::element document;
  if (const auto error = parser.parse(padded).get(document); error != simdjson::SUCCESS) {
    throw Error(ExitCode::config, fmt::format("not valid JSON: {}", simdjson::error_message(error)), where, "give a whole tokenizer.json");
  }
  TokenizerJson out;
  const Node root(document, "", where);
  root.only({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder", "model"});
  if (const auto version = root.find("version"); version && version->string() != "1.0") version->fail(shown(version->string()) + " is not 1.0");
  if (const auto normalizer = root.find("normalizer")) parse_normalizer(*normalizer, out.normalizer, 0);

  const Node pre_tokenizer = root.at("pre_tokenizer");
  PreTokenizerParser steps{out};
  if (!pre_tokenizer.is_null()) steps.parse(pre_tokenizer, 0);
  if (!steps.byte_level) pre_tokenizer.fail("has no ByteLevel step", "only byte-level BPE is read; SentencePiece models as sentencepiece:FILE");

  const Node model_node = root.at("model");
  ModelParser model(model_node, out);
  model.parse();
  if (const auto added = root.find("added_tokens"); added && !added->is_null()) parse_added_tokens(*added, model, out);
  return out;
}

// GPT-2's table: printable Latin-1 characters stand for themselves, the others for U+0100 onwards in order.
std::string byte_level_char(unsigned char byte) {
  const auto itself = [](unsigned b) { return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE; };
  unsigned code = byte;
  if (!itself(byte)) {
    code = 0x100;
    for (unsigned b = 0; b < byte; ++b) code += itself(b) ? 0 : 1;
  }
  if (code < 0x80) return {static_cast<char>(code)};
  return {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
}

bool byte_level_decode(std::string_view token, std::string& bytes) {
  static const auto table = [] {  // constant: character to byte, -1 where there is none
    std::array<int16_t, 0x180> of{};
    of.fill(-1);
    for (int byte = 0; byte < 256; ++byte) of[utf8_at(byte_level_char(static_cast<unsigned char>(byte)).c_str()).code] = static_cast<int16_t>(byte);
    return of;
  }();
  bytes.clear();
  for (size_t at = 0; at < token.size();) {
    const Utf8Char c = utf8_at(token.data() + at);
    if (c.code >= table.size() || table[c.code] < 0) return false;
    bytes.push_back(static_cast<char>(table[c.code]));
    at += c.bytes;
  }
  return true;
}

}  // namespace octet::data
