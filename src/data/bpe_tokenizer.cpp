#include "data/bpe_tokenizer.h"

#include <utility>

namespace octet::data {
namespace {
std::vector<AddedToken> added(const TokenizerJson& json, bool normalized) {
  std::vector<AddedToken> some;
  for (const AddedToken& token : json.added_tokens) {
    if (token.normalized == normalized) some.push_back(token);
  }
  return some;
}
}  // namespace

BpeTokenizer::BpeTokenizer(const TokenizerJson& json, const std::string& where, std::shared_ptr<const UnicodeClasses> classes)
    : classes_(std::move(classes)),
      normalizer_(json.normalizer),
      raw_(added(json, false), nullptr, classes_, where),
      normalized_(added(json, true), &normalizer_, classes_, where),
      pre_tokenizer_(json, classes_, where),
      model_(json),
      vocab_size_(json.vocab_size) {
  for (const AddedToken& token : json.added_tokens) added_.emplace(token.id, token.content);
}

std::string_view BpeTokenizer::bytes(int32_t id) const {
  const auto found = added_.find(id);
  return found != added_.end() ? std::string_view(found->second) : model_.bytes(id);
}

std::optional<int32_t> BpeTokenizer::added_id(std::string_view content) const {
  for (const auto& [id, text] : added_) {
    if (text == content) return id;
  }
  return std::nullopt;
}

void BpeTokenizer::encode_word(std::string_view word, Scratch& scratch) const {
  if (word.size() == 1) return scratch.ids.push(model_.byte_id(static_cast<unsigned char>(word[0])));
  if (word.size() > BpeCache::most_bytes) return model_.encode_word(word, scratch.merging, scratch.ids);
  const BpeCache::Key key = BpeCache::key(word);
  if (const BpeCache::Entry* hit = scratch.cache.find(key)) {
    std::memcpy(scratch.ids.room(BpeCache::most_ids), hit->ids, sizeof(hit->ids));
    return scratch.ids.advance(hit->count);
  }
  const size_t before = scratch.ids.size();
  model_.encode_word(word, scratch.merging, scratch.ids);
  const size_t count = scratch.ids.size() - before;
  if (count <= BpeCache::most_ids) scratch.cache.insert(key, scratch.ids.data() + before, count);
}

void BpeTokenizer::encode_piece(std::string_view text, Scratch& scratch) const {
  normalized_.split(normalizer_.apply(text, scratch.normalized), [&](std::string_view piece, int32_t id) {
    if (id >= 0) return scratch.ids.push(id);
    pre_tokenizer_.each_word(piece, scratch.words, [&](std::string_view word) { encode_word(word, scratch); });
  });
}

void BpeTokenizer::encode(std::string_view text, Scratch& scratch) const {
  raw_.split(text, [&](std::string_view piece, int32_t id) {
    if (id >= 0) scratch.ids.push(id);
    else encode_piece(piece, scratch);
  });
}

}  // namespace octet::data
