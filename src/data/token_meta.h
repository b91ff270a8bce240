// PREFIX.meta.json: by whom a token file was made. Optional for files from elsewhere; `octet data build` always writes it.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace octet::data {

struct TokenMeta {
  std::string tokenizer;                  // byte, sentencepiece or hf-bpe
  std::string tokenizer_file;             // its name without folders; empty for byte
  std::string tokenizer_xxh64;            // of the file, 16 hexadecimal digits; of nothing for byte
  int64_t vocab_size = 0;
  std::optional<int64_t> eod_id;
  int64_t documents = 0, tokens = 0;
  std::string build_xxh64;                // of the inputs (place, size, time of change) and options, 16 hexadecimal digits; empty in files of earlier versions
};

std::string to_json(const TokenMeta& meta);

// Strict: format "octet-tokens" version 1, every key once (build_xxh64 may be missing) and none other, values in their ranges. Throws Error(ExitCode::data).
TokenMeta parse_token_meta(std::string_view text, const std::string& where);

// Nothing when the file does not exist. Throws Error(ExitCode::data) when it is no such file.
std::optional<TokenMeta> read_token_meta(const std::string& prefix);

std::string xxh64_hex(std::string_view bytes);

}  // namespace octet::data
