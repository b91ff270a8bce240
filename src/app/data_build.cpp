#include "app/data_build.h"

#include <fmt/format.h>

#include <charconv>
#include <cxxopts.hpp>
#include <filesystem>
#include <string>
#include <vector>

#include "app/data_words.h"
#include "core/error.h"
#include "core/file_io.h"
#include "core/thread_pool.h"
#include "data/build.h"
#include "data/sentencepiece.h"

namespace octet {
namespace {
using namespace data_words;

data::TextFormat format_of(const cxxopts::ParseResult& words) {
  const std::string format = words["format"].as<std::string>();
  if (format == "text") return data::TextFormat::text;
  if (format == "jsonl") return data::TextFormat::jsonl;
  if (format != "auto") value_error("--format", format, "give text, jsonl or auto");
  return data::TextFormat::automatic;
}

void set_choices(const cxxopts::ParseResult& words, data::BuildOptions& build) {
  const std::string split = words["split-documents"].as<std::string>(), invalid = words["invalid-utf8"].as<std::string>();
  build.tokenizer = words["tokenizer"].as<std::string>();
  if (words.count("eod-token")) build.eod_token = words["eod-token"].as<std::string>();
  build.format = format_of(words);
  if (split == "blank-lines") build.split = data::DocumentSplit::blank_lines;
  else if (split != "none") value_error("--split-documents", split, "give none or blank-lines");
  if (invalid == "replace") build.replace_invalid_utf8 = true;
  else if (invalid != "refuse") value_error("--invalid-utf8", invalid, "give refuse or replace");
  if (words.count("append-eod") && words.count("no-append-eod")) usage_error("build", "--append-eod and --no-append-eod contradict each other");
  build.append_eod = !words.count("no-append-eod");
  build.json_key = words["json-key"].as<std::string>();
  build.threads = static_cast<int>(integer(words, "threads", 0, 1024));
  if (build.threads == 0) build.threads = usable_cores();
  build.commit_bytes = integer(words, "commit-mib", 0, 1 << 20) << 20;
  build.resume = words.count("resume") > 0;
}
}  // namespace

int run_build(int argc, char** argv) {
  cxxopts::Options options("octet data build",
                           "Turns text into token files that 'octet train --data-path PREFIX' reads: PREFIX.idx and PREFIX.bin, with PREFIX.meta.json.\n"
                           "Existing files are never overwritten. Inputs may be compressed (.gz, .zst; told by their content).\n\n"
                           "  octet data build --input book.txt --split-documents blank-lines --out data/book\n"
                           "  octet data build --input a.jsonl b.jsonl.zst --tokenizer hf:tokenizer.json --out data/web\n");
  options.custom_help("--input FILE... --out PREFIX [options]");
  const auto text = [](const char* otherwise) { return cxxopts::value<std::string>()->default_value(otherwise); };
  options.add_options()  //
      ("input", "text or JSONL files, read in this order", cxxopts::value<std::string>(), "FILE...")  //
      ("out", "writes PREFIX.idx, PREFIX.bin and PREFIX.meta.json", cxxopts::value<std::string>(), "PREFIX")  //
      ("tokenizer", "byte (ids 0-255 are bytes, 256 ends a document), sentencepiece:MODEL or hf:tokenizer.json", text("byte"), "NAME")  //
      ("eod-token", "token that ends a document (absent: </s> of SentencePiece; of a tokenizer.json the first there is of <|endoftext|>, "
                    "<|end_of_text|>, </s>, <eos>)", cxxopts::value<std::string>(), "TEXT")  //
      ("format", "text, jsonl, or auto: jsonl for .jsonl and .json files (also .gz, .zst)", text("auto"), "FORMAT")  //
      ("split-documents", "of text files: none (one document a file) or blank-lines (empty lines part documents)", text("none"), "HOW")  //
      ("json-key", "key of the text in a JSONL object", text("text"), "KEY")  //
      ("invalid-utf8", "refuse, or replace by U+FFFD (the byte tokenizer takes any bytes of text files)", text("refuse"), "HOW")  //
      ("append-eod", "end each document with the EOD token (the default)")  //
      ("no-append-eod", "do not")  //
      ("threads", "0: all cores; the output is the same for any number", text("0"), "N")  //
      ("resume", "go on with an interrupted build of the same inputs and options, do nothing when it is complete, begin when there is none")  //
      ("commit-mib", "MiB of text between two points to go on from", text("256"), "N");
  std::vector<char*> rest;
  data::BuildOptions build;
  build.inputs = take_inputs("build", argc, argv, rest);
  const auto words = parse(options, "build", static_cast<int>(rest.size()), rest.data());
  if (!words) return 0;
  if (build.inputs.empty()) usage_error("build", "--input FILE... is missing");
  build.prefix = required(*words, "build", "out", "--out PREFIX");
  set_choices(*words, build);

  const data::BuildResult result = data::build_token_files(build);
  if (result.resumed_bytes > 0) fmt::print("went on behind {} bytes of text of an interrupted build\n", result.resumed_bytes);
  if (result.was_complete) {
    fmt::print("{0}.idx and {0}.bin are complete already: {1} documents, {2} tokens ({3})\n", build.prefix, result.documents, result.tokens, result.token_type);
  } else {
    fmt::print("wrote {0}.idx and {0}.bin: {1} documents, {2} tokens ({3}) from {4} bytes in {5} file(s)\n", build.prefix, result.documents, result.tokens,
               result.token_type, result.bytes_read, build.inputs.size());
  }
  if (build.tokenizer != "byte") {
    fmt::print("vocab_size {}, {}\n", result.vocab_size,
               build.append_eod ? fmt::format("documents end with {} ({})", *result.eod_id, result.eod_text) : "no EOD behind documents");
  }
  if (result.empty_documents > 0) fmt::print("left out {} documents without text\n", result.empty_documents);
  return 0;
}

int run_train_tokenizer(int argc, char** argv) {
  cxxopts::Options options("octet data train-tokenizer",
                           "Trains a SentencePiece model for 'octet data build --tokenizer sentencepiece:MODEL'. Text is kept as it is (no normalization),\n"
                           "digits are single pieces. Pieces 0, 1, 2 are <unk>, <s>, </s>.\n\n"
                           "  octet data train-tokenizer --input book.txt --model-type bpe --vocab-size 8000 --out data/book.model\n");
  options.custom_help("--input FILE... --vocab-size N --out MODEL [options]");
  const auto text = [](const char* otherwise) { return cxxopts::value<std::string>()->default_value(otherwise); };
  options.add_options()  //
      ("input", "text or JSONL files, also .gz and .zst", cxxopts::value<std::string>(), "FILE...")  //
      ("out", "the model file; not overwritten", cxxopts::value<std::string>(), "MODEL")  //
      ("vocab-size", "number of pieces", cxxopts::value<std::string>(), "N")  //
      ("model-type", "bpe or unigram", text("bpe"), "TYPE")  //
      ("character-coverage", "share of the text's characters that get pieces of their own", text("0.9995"), "C")  //
      ("no-byte-fallback", "other characters become <unk> instead of bytes")  //
      ("sentences", "train on a random sample of so many lines; 0: all, held in memory", text("0"), "N")  //
      ("format", "text, jsonl, or auto", text("auto"), "FORMAT")  //
      ("json-key", "key of the text in a JSONL object", text("text"), "KEY");
  std::vector<char*> rest;
  data::TrainTokenizerOptions train;
  train.inputs = take_inputs("train-tokenizer", argc, argv, rest);
  const auto words = parse(options, "train-tokenizer", static_cast<int>(rest.size()), rest.data());
  if (!words) return 0;
  if (train.inputs.empty()) usage_error("train-tokenizer", "--input FILE... is missing");
  const std::string out = required(*words, "train-tokenizer", "out", "--out MODEL");
  required(*words, "train-tokenizer", "vocab-size", "--vocab-size N");
  train.vocab_size = integer(*words, "vocab-size", 8, 1 << 24);
  train.sentences = integer(*words, "sentences", 0, int64_t{1} << 40);
  train.model_type = (*words)["model-type"].as<std::string>();
  if (train.model_type != "bpe" && train.model_type != "unigram") value_error("--model-type", train.model_type, "give bpe or unigram");
  const std::string coverage = (*words)["character-coverage"].as<std::string>();
  const auto [end, error] = std::from_chars(coverage.data(), coverage.data() + coverage.size(), train.character_coverage);
  if (error != std::errc() || end != coverage.data() + coverage.size() || !(train.character_coverage >= 0.9 && train.character_coverage <= 1.0)) {
    value_error("--character-coverage", coverage, "give a number from 0.9 to 1");
  }
  train.byte_fallback = !words->count("no-byte-fallback");
  train.format = format_of(*words);
  train.json_key = (*words)["json-key"].as<std::string>();
  std::error_code status;
  if (std::filesystem::exists(std::filesystem::symlink_status(out, status))) {
    throw Error(ExitCode::data, "exists already and is not overwritten", out, "remove it or choose another output");
  }
  const data::TrainTokenizerResult result = data::train_sentencepiece(train);
  make_parent_directory(out, ExitCode::data);
  write_file_atomic(out, result.model, ExitCode::data);
  fmt::print("wrote {}: a {} model of {} pieces from {} lines, {} bytes\n", out, train.model_type, train.vocab_size, result.lines, result.bytes);
  return 0;
}

}  // namespace octet
