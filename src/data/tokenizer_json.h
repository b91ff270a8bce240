// Hugging Face `tokenizer.json` with a byte-level BPE model (GPT-2, Llama 3, Qwen), read strictly into plain data. The file is hostile until
// parsed: its size, nesting, ids and references are checked, and what this program cannot do exactly as the `tokenizers` package does is
// refused with the JSON path of the offending value.
//
// Read: added_tokens, normalizer (null, NFC, NFD, NFKC, NFKD, Sequence), pre_tokenizer (ByteLevel last; Split and Digits before it; Sequence),
// model (BPE: vocab, merges as "a b" or ["a", "b"], ignore_merges). Not used when documents are encoded, so only checked for being JSON:
// decoder, post_processor (documents get no BOS or EOS from it), truncation, padding.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "data/unicode.h"

namespace octet::data {

enum class SplitBehavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };

struct SplitStep {
  std::string pattern;
  bool is_regex = true;       // else a literal string
  SplitBehavior behavior = SplitBehavior::isolated;
  bool invert = false;
  std::string where;          // JSON path, for errors
};

struct DigitsStep {
  bool individual = false;
};

using PreTokenizerStep = std::variant<SplitStep, DigitsStep>;

struct ByteLevelStep {
  bool add_prefix_space = true, use_regex = true;
};

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool single_word = false, lstrip = false, rstrip = false, normalized = true, special = false;
};

struct Merge {
  int32_t left = 0, right = 0, result = 0;
};

struct TokenizerJson {
  std::vector<AddedToken> added_tokens;
  std::vector<NormalForm> normalizer;
  std::vector<PreTokenizerStep> splits;   // before ByteLevel
  ByteLevelStep byte_level;
  std::vector<std::pair<std::string, int32_t>> vocab;  // token in the byte-level alphabet, as in the file
  std::vector<Merge> merges;              // by falling priority
  bool ignore_merges = false;
  int64_t vocab_size = 0;                 // ids in use: the largest of vocab and added tokens, plus one
};

// Most bytes of a tokenizer.json that are read (the largest public ones have about 35 MB).
inline constexpr uint64_t most_tokenizer_json_bytes = uint64_t{64} << 20;

// Throws Error(ExitCode::config): not JSON, a wrong type, a missing or unknown key, ids that are negative, doubled or far beyond the number
// of tokens, merges of unknown tokens, anything unsupported. `where` (the file's name) stands in front of the JSON path.
TokenizerJson parse_tokenizer_json(std::string_view text, const std::string& where);

// GPT-2's alphabet: the character that stands for a byte in `vocab`, UTF-8.
std::string byte_level_char(unsigned char byte);
// The bytes that a token of `vocab` stands for. False when it has a character outside the alphabet (no text gives such a token).
bool byte_level_decode(std::string_view token, std::string& bytes);

}  // namespace octet::data
