// Files of tokens and nothing else (raw_u16, raw_u32), little-endian; nanoGPT's train.bin is one. And how documents are found in files
// that do not tell where they end (llm.c's too).
#pragma once
#include "data/token_layout.h"

namespace octet::data {

// Cuts the `tokens` tokens from byte `first_byte` on behind each eod_id; what follows the last one is a document too. Reads them all.
// Errors: ExitCode::data for a document of 2^31 tokens or more.
TokenLayout find_documents(const ByteReader& reader, TokenType type, uint64_t first_byte, int64_t tokens, int64_t eod_id);

// A whole file. Errors: ExitCode::data when it is empty, its size is no multiple of the token's, and as above.
TokenLayout raw_layout(const ByteReader& reader, TokenType type, int64_t eod_id);

}  // namespace octet::data
