#include <fmt/format.h>
#include <sentencepiece_trainer.h>

#include <algorithm>
#include <exception>
#include <unordered_map>

#include "core/error.h"
#include "data/build_parse.h"
#include "data/build_reader.h"
#include "data/sentencepiece.h"
#include "data/unicode.h"

namespace octet::data {
namespace {
// Lines of the documents, for the trainer. It is not exception safe: an error is kept and ends the iteration.
class Lines : public sentencepiece::SentenceIterator {
 public:
  explicit Lines(const TrainTokenizerOptions& options)
      : reader_({options.inputs, options.format, DocumentSplit::blank_lines, false}, {}), parser_(options.json_key, InvalidUtf8::refuse) {
    advance();
  }

  bool done() const override { return done_; }
  void Next() override { advance(); }
  const std::string& value() const override { return line_; }
  sentencepiece::util::Status status() const override { return {}; }

  void rethrow() const {
    if (failure_) std::rethrow_exception(failure_);
  }
  int64_t lines = 0, bytes = 0;

 private:
  void advance() {
    try {
      while (!next_line()) {
        if (!next_document()) {
          done_ = true;
          return;
        }
      }
      ++lines;
      bytes += static_cast<int64_t>(line_.size());
    } catch (...) {
      failure_ = std::current_exception();
      done_ = true;
    }
  }
  bool next_line() {
    while (!document_.empty()) {
      const size_t end = std::min(document_.find('\n'), document_.size());
      line_.assign(document_.substr(0, end));
      document_.remove_prefix(std::min(end + 1, document_.size()));
      if (!line_.empty() && line_.back() == '\r') line_.pop_back();
      if (!line_.empty()) return true;
    }
    return false;
  }
  bool next_document() {
    while (piece_ == chunk_.pieces.size()) {
      piece_ = 0;
      if (!reader_.next(chunk_)) return false;
    }
    document_ = parser_.text(chunk_, chunk_.pieces[piece_++]);
    return true;
  }

  DocumentReader reader_;
  DocumentParser parser_;
  TextChunk chunk_;
  size_t piece_ = 0;
  std::string_view document_;
  std::string line_;
  bool done_ = false;
  std::exception_ptr failure_;
};
}  // namespace

TrainTokenizerResult train_sentencepiece(const TrainTokenizerOptions& options) {
  // num_threads changes the last bits of sums over the corpus (unigram), so it is a constant.
  std::unordered_map<std::string, std::string> arguments = {
      {"model_type", options.model_type},
      {"vocab_size", fmt::format("{}", options.vocab_size)},
      {"character_coverage", fmt::format("{}", options.character_coverage)},
      {"byte_fallback", options.byte_fallback ? "true" : "false"},
      {"normalization_rule_name", "identity"},
      {"remove_extra_whitespaces", "false"},
      {"split_digits", "true"},
      {"num_threads", "4"},
      {"minloglevel", "2"},
      {"max_sentence_length", "16384"},
  };
  if (options.sentences > 0) {
    arguments["input_sentence_size"] = fmt::format("{}", options.sentences);
    arguments["shuffle_input_sentence"] = "true";
  }
  Lines lines(options);
  TrainTokenizerResult result;
  lines.rethrow();
  if (lines.done()) throw Error(ExitCode::data, "the corpus is empty", options.inputs.empty() ? "" : options.inputs.front(), "give files that hold text");
  const auto status = sentencepiece::SentencePieceTrainer::Train(arguments, &lines, &result.model);
  lines.rethrow();
  if (!status.ok() || result.model.empty()) {
    std::string reason = status.ToString();
    std::replace(reason.begin(), reason.end(), '\n', ' ');
    throw Error(ExitCode::config, "SentencePiece refuses to train: " + reason.substr(0, 300), "", "change --vocab-size, or give more text");
  }
  result.lines = lines.lines;
  result.bytes = lines.bytes;
  return result;
}

}  // namespace octet::data
