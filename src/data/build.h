// Text and JSONL files to a token file pair (`octet data build`).
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/build_parse.h"
#include "data/build_reader.h"

namespace octet::data {

struct BuildOptions {
  std::vector<std::string> inputs;                  // read in this order; plain, gzip or Zstandard
  std::string prefix;                               // writes PREFIX.idx, PREFIX.bin and PREFIX.meta.json
  TextFormat format = TextFormat::automatic;
  // none: a text file is one document, byte for byte. blank_lines: each run of lines between empty lines (nothing, or one carriage
  // return) is a document; its lines keep their line ends, the empty lines belong to none.
  DocumentSplit split = DocumentSplit::none;
  std::string json_key = "text";                    // of JSONL: a top-level string
  std::string tokenizer = "byte";                   // see Tokenizer::open
  std::optional<std::string> eod_token;
  bool append_eod = true;                           // after each document
  bool replace_invalid_utf8 = false;                // by U+FFFD; else it is an error (the byte tokenizer takes any bytes of text files)
  int threads = 1;                                  // the output does not depend on it
  bool resume = false;                              // go on with an interrupted build; a finished one of the same job stays; else begins
  int64_t commit_bytes = int64_t{256} << 20;        // of text between two commits that --resume can go on from
};

struct BuildResult {
  int64_t documents = 0, tokens = 0;
  int64_t empty_documents = 0;                      // without tokens: not written, no EOD
  int64_t bytes_read = 0;                           // of text, decompressed
  int64_t resumed_bytes = 0;                        // of those, by an earlier run
  bool was_complete = false;                        // an earlier run had finished: nothing was read or written, and bytes and empty are 0
  std::string token_type, eod_text;
  std::optional<int32_t> eod_id;
  int64_t vocab_size = 0;
};

// Memory: the tokenizer, 2 x threads chunks of 512 KiB, and where a document is larger (at most 256 MiB) such documents; text files of the byte
// tokenizer are cut anywhere. Nothing appears under PREFIX.idx, .bin and .meta.json before all is written. Until then there are PREFIX.*.tmp,
// and from the first commit PREFIX.resume.json; a killed run leaves them for `resume`, an error removes them (a full disk leaves them if
// something was committed).
// A finished build counts as the same job when PREFIX.meta.json names the same inputs (place, size, time of change), tokenizer and options, and the pair is whole.
// Errors: ExitCode::config for the tokenizer; ExitCode::data for a missing or unreadable input, a malformed JSONL line ("file:line"), invalid
// UTF-8, inputs without any text, existing outputs, an interrupted build without `resume`, one of another job with it; ExitCode::checkpoint on
// a full disk.
BuildResult build_token_files(const BuildOptions& options);

}  // namespace octet::data
