#include "data/sentencepiece.h"

#include <fmt/format.h>
#include <sentencepiece_processor.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "core/error.h"
#include "data/sentencepiece_check.h"

namespace octet::data {
namespace {
std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text.substr(0, 300);
}

// The library reports most by its status, and throws where a trie cannot be built or memory runs out. `failed` makes our Error.
template <class Call, class Failed>
void call_library(Call&& call, Failed&& failed) {
  std::string reason;
  try {
    const auto status = call();
    if (status.ok()) return;
    reason = status.ToString();
  } catch (const std::exception& error) {
    reason = error.what();
  }
  throw failed(one_line(std::move(reason)));
}
}  // namespace

struct SentencePieceModel::Library {
  sentencepiece::SentencePieceProcessor processor;
};

SentencePieceModel::SentencePieceModel(std::unique_ptr<Library> library) : library_(std::move(library)) {}
SentencePieceModel::SentencePieceModel(SentencePieceModel&&) noexcept = default;
SentencePieceModel& SentencePieceModel::operator=(SentencePieceModel&&) noexcept = default;
SentencePieceModel::~SentencePieceModel() = default;

SentencePieceModel SentencePieceModel::parse(std::string_view model, const std::string& where) {
  const char* const fix = "give a .model file as SentencePiece writes it ('octet data train-tokenizer' does)";
  if (model.empty() || model.size() > most_file_bytes) throw Error(ExitCode::config, fmt::format("has {} bytes: no SentencePiece model", model.size()), where, fix);
  check_sentencepiece_model(model, where);
  auto library = std::make_unique<Library>();
  call_library([&] { return library->processor.LoadFromSerializedProto(model); },
               [&](const std::string& reason) { return Error(ExitCode::config, "no SentencePiece model: " + reason, where, fix); });
  if (library->processor.GetPieceSize() <= 0) throw Error(ExitCode::config, "a SentencePiece model without pieces", where, fix);
  return SentencePieceModel(std::move(library));
}

void SentencePieceModel::encode(std::string_view text, std::vector<int32_t>& ids) const {
  call_library([&] { return library_->processor.Encode(text, &ids); },
               [](const std::string& reason) { return Error(ExitCode::data, "SentencePiece cannot encode a document: " + reason, "", "look at the text"); });
}

std::string SentencePieceModel::decode(std::span<const int32_t> ids) const {
  std::string text;
  call_library([&] { return library_->processor.Decode(std::vector<int>(ids.begin(), ids.end()), &text); },
               [](const std::string& reason) { return Error(ExitCode::data, "SentencePiece cannot decode: " + reason, "", "check that the ids are this model's"); });
  return text;
}

int64_t SentencePieceModel::vocab_size() const { return library_->processor.GetPieceSize(); }

std::optional<int32_t> SentencePieceModel::eos_id() const {
  const int id = library_->processor.eos_id();
  return id < 0 ? std::nullopt : std::optional<int32_t>(id);
}

std::optional<int32_t> SentencePieceModel::piece_id(const std::string& piece) const {
  const int id = library_->processor.PieceToId(piece);
  if (id < 0 || library_->processor.IdToPiece(id) != piece) return std::nullopt;
  return id;
}

}  // namespace octet::data
