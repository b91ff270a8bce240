#include "data/tokenizer.h"

#include <fmt/format.h>

#include <filesystem>

#include "core/error.h"
#include "core/file_io.h"
#include "data/token_meta.h"

namespace octet::data {
namespace {
constexpr std::string_view sentencepiece_prefix = "sentencepiece:", hf_prefix = "hf:";
constexpr const char* usual_eod[] = {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>"};
}  // namespace

Tokenizer Tokenizer::open(const std::string& name, const std::optional<std::string>& eod_token) {
  const bool sentencepiece = name.starts_with(sentencepiece_prefix), hf = name.starts_with(hf_prefix);
  if (name == ByteTokenizer::name) {
    if (eod_token) throw Error(ExitCode::config, "the byte tokenizer ends a document with id 256, always", "--eod-token", "leave the option away");
    Tokenizer byte{Kind(ByteTokenizer())};
    byte.vocab_size_ = ByteTokenizer::vocab_size;
    byte.eod_ = ByteTokenizer::eod;
    byte.eod_text_ = "256";
    byte.file_xxh64_ = xxh64_hex("");
    return byte;
  }
  const std::string path = name.substr(name.find(':') + 1);
  if ((!sentencepiece && !hf) || path.empty()) {
    throw Error(ExitCode::config, fmt::format("'{}' is no tokenizer", name), "--tokenizer", "give byte, sentencepiece:MODEL or hf:tokenizer.json");
  }
  const std::string content = read_file(path, sentencepiece ? SentencePieceModel::most_file_bytes : most_tokenizer_json_bytes, ExitCode::config);
  Tokenizer out{sentencepiece ? Kind(SentencePieceModel::parse(content, path)) : Kind(BpeTokenizer(parse_tokenizer_json(content, path), path))};
  out.file_name_ = std::filesystem::path(path).filename().string();
  out.file_xxh64_ = xxh64_hex(content);
  out.vocab_size_ = sentencepiece ? std::get<SentencePieceModel>(out.of_).vocab_size() : std::get<BpeTokenizer>(out.of_).vocab_size();
  out.choose_eod(eod_token, path);
  return out;
}

void Tokenizer::choose_eod(const std::optional<std::string>& token, const std::string& where) {
  const auto* model = std::get_if<SentencePieceModel>(&of_);
  const auto find = [&](const std::string& text) { return model ? model->piece_id(text) : std::get<BpeTokenizer>(of_).added_id(text); };
  if (token) {
    eod_ = find(*token);
    eod_text_ = *token;
    if (!eod_) throw Error(ExitCode::config, fmt::format("has no {} '{}'", model ? "piece" : "added token", *token), where, "name another one with --eod-token");
    return;
  }
  if (model) {
    eod_ = model->eos_id();
    eod_text_ = eod_ ? "</s>" : "";
    return;
  }
  for (const char* text : usual_eod) {
    if (const auto id = find(text)) {
      eod_ = id;
      eod_text_ = text;
      return;
    }
  }
}

std::string_view Tokenizer::kind() const {
  switch (of_.index()) {
    case 0: return "byte";
    case 1: return "sentencepiece";
    default: return "hf-bpe";
  }
}

std::span<const int32_t> Tokenizer::encode(std::string_view text, Scratch& scratch) const {
  if (std::holds_alternative<ByteTokenizer>(of_)) {
    ByteTokenizer::encode(text, scratch.ids);
    return scratch.ids;
  }
  if (const auto* model = std::get_if<SentencePieceModel>(&of_)) {
    model->encode(text, scratch.ids);
    return scratch.ids;
  }
  if (std::holds_alternative<std::monostate>(scratch.bpe)) scratch.bpe.emplace<BpeTokenizer::Scratch>();
  auto& bpe = std::get<BpeTokenizer::Scratch>(scratch.bpe);
  bpe.ids.clear();
  std::get<BpeTokenizer>(of_).encode(text, bpe);
  return {bpe.ids.data(), bpe.ids.size()};
}

std::string Tokenizer::decode(std::span<const int32_t> ids) const {
  std::vector<int32_t> kept;
  for (int32_t id : ids) {
    if (id < 0 || id >= vocab_size_) {
      throw Error(ExitCode::data, fmt::format("id {} is none of the tokenizer's, which has {}", id, vocab_size_), file_name_, "use the tokenizer the tokens were made with");
    }
    if (id != eod_) kept.push_back(id);
  }
  if (takes_any_bytes()) return ByteTokenizer::decode(kept);
  if (const auto* model = std::get_if<SentencePieceModel>(&of_)) return model->decode(kept);
  std::string text;
  for (int32_t id : kept) text += std::get<BpeTokenizer>(of_).bytes(id);
  return text;
}

}  // namespace octet::data
