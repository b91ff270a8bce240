// SentencePiece models (unigram, BPE, word, char) by the system's library: encoding, and training on the inputs of `octet data build`.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/text_input.h"

namespace octet::data {

class SentencePieceModel {
 public:
  static constexpr uint64_t most_file_bytes = uint64_t{64} << 20;

  // Serialized ModelProto. Throws Error(ExitCode::config) with `where` when data/sentencepiece_check.h or the library does not take it.
  static SentencePieceModel parse(std::string_view model, const std::string& where);
  SentencePieceModel(SentencePieceModel&&) noexcept;
  SentencePieceModel& operator=(SentencePieceModel&&) noexcept;
  ~SentencePieceModel();

  // Replaces `ids`; no BOS or EOS. May be called from several threads. Throws Error(ExitCode::data) when the library fails.
  void encode(std::string_view text, std::vector<int32_t>& ids) const;
  std::string decode(std::span<const int32_t> ids) const;
  int64_t vocab_size() const;
  std::optional<int32_t> eos_id() const;
  std::optional<int32_t> piece_id(const std::string& piece) const;  // none for an unknown piece

 private:
  struct Library;
  explicit SentencePieceModel(std::unique_ptr<Library> library);
  std::unique_ptr<Library> library_;
};

struct TrainTokenizerOptions {
  std::vector<std::string> inputs;       // text or JSONL, plain, .gz or .zst
  TextFormat format = TextFormat::automatic;
  std::string json_key = "text";
  std::string model_type = "bpe";        // or unigram
  int64_t vocab_size = 0;
  double character_coverage = 0.9995;
  bool byte_fallback = true;             // characters outside the vocabulary become bytes instead of <unk>
  int64_t sentences = 0;                 // train on a random sample of so many lines; 0: all of them, held in memory
};

struct TrainTokenizerResult {
  std::string model;                     // serialized; the caller writes it
  int64_t lines = 0, bytes = 0;
};

// Each line of each document is a sentence. The result does not depend on the number of cores.
// Throws Error: ExitCode::data for inputs (missing, malformed, not UTF-8, empty), ExitCode::config for values the trainer refuses.
TrainTokenizerResult train_sentencepiece(const TrainTokenizerOptions& options);

}  // namespace octet::data
