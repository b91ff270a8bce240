// Text and JSONL files to a token file pair (`octet data build`).
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace octet::data {

enum class TextFormat { automatic, text, jsonl };   // automatic: jsonl for *.jsonl and *.json, else text
enum class DocumentSplit { none, blank_lines };     // of text files

struct BuildOptions {
  std::vector<std::string> inputs;                  // read in this order
  std::string prefix;                               // writes PREFIX.idx and PREFIX.bin
  TextFormat format = TextFormat::automatic;
  // none: a text file is one document, byte for byte. blank_lines: each run of lines between empty lines (nothing, or one carriage
  // return) is a document; its lines keep their line ends, the empty lines belong to none.
  DocumentSplit split = DocumentSplit::none;
  std::string json_key = "text";                    // of JSONL: a top-level string
  bool append_eod = true;                           // after each document
};

struct BuildResult {
  int64_t documents = 0, tokens = 0;
  int64_t empty_documents = 0;                      // without text: not written, no EOD
  int64_t bytes_read = 0;
};

// Byte tokenizer. Memory is constant for text, one line (at most 256 MiB) for JSONL. On any error nothing is left under PREFIX.
// Errors: ExitCode::data for a missing or unreadable input, a malformed JSONL line ("file:line"), an input without any text,
// existing outputs; ExitCode::checkpoint on a full disk.
BuildResult build_token_files(const BuildOptions& options);

}  // namespace octet::data
