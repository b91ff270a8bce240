// Token files of Hugging Face datatrove (nanotron reads them too):
//
//   X.ds            uint16 or uint32 tokens, no header
//   X.ds.index      uint64 end of each document, exclusive, in tokens
//   X.ds.metadata   text: "tokenizer|bytes a token", the number of tokens, the same for humans; one a line. May be absent: then the
//                   index tells the size of a token
//   X.ds.loss       one byte a token, 0: no loss there. Only files without any 0 are taken: Octet has no loss mask by token
//
// Little-endian. Nanotron cuts windows of S+1 tokens that do not overlap; Octet reads the documents as it does Megatron's.
#pragma once
#include <optional>
#include <string>

#include "data/token_layout.h"

namespace octet::data {

struct DatatroveMetadata {
  TokenType type = TokenType::u16;
  int64_t tokens = 0;
  std::string tokenizer;
};
// Errors: ExitCode::data.
DatatroveMetadata parse_datatrove_metadata(const ByteReader& reader);

// `ds`: the token file, of which only size and name count. Errors (ExitCode::data): an index of a size that is no multiple of 8, ends that
// fall or pass the file's end, a last end other than the number of tokens, metadata that contradicts the size, a document of 2^31 tokens.
TokenLayout parse_datatrove(const ByteReader& ds, const ByteReader& index, const std::optional<DatatroveMetadata>& metadata);

// Refuses a mask of another size and one with a byte other than 1.
void check_datatrove_loss(const ByteReader& loss, int64_t tokens);

// Opens X.ds and its companions.
File open_datatrove(const std::string& path, TokenLayout& layout);

}  // namespace octet::data
