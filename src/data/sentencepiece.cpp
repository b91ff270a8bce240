#include "data/sentencepiece.h"

#include <fmt/format.h>
#include <sentencepiece_processor.h>

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace octet::data {
namespace {
std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text.substr(0, 300);
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
  auto library = std::make_unique<Library>();
  const auto status = library->processor.LoadFromSerializedProto(model);
  if (!status.ok()) throw Error(ExitCode::config, "no SentencePiece model: " + one_line(status.ToString()), where, fix);
  if (library->processor.GetPieceSize() <= 0) throw Error(ExitCode::config, "a SentencePiece model without pieces", where, fix);
  return SentencePieceModel(std::move(library));
}

void SentencePieceModel::encode(std::string_view text, std::vector<int32_t>& ids) const {
  const auto status = library_->processor.Encode(text, &ids);
  if (!status.ok()) throw Error(ExitCode::data, "SentencePiece cannot encode a document: " + one_line(status.ToString()), "", "look at the text");
}

std::string SentencePieceModel::decode(std::span<const int32_t> ids) const {
  std::string text;
  const auto status = library_->processor.Decode(std::vector<int>(ids.begin(), ids.end()), &text);
  if (!status.ok()) throw Error(ExitCode::data, "SentencePiece cannot decode: " + one_line(status.ToString()), "", "check that the ids are this model's");
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
