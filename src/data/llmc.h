// Token files of llm.c and modded-nanoGPT: 256 int32 of header (1,024 bytes; [0] magic, [1] version, [2] tokens, the rest unused), then
// the tokens. Little-endian.
//
//   magic 20240520, version 1   uint16 tokens
//   magic 20240801, version 7   uint32 tokens (Llama 3 vocabularies)
//
// Source: llm.c, dev/data/data_common.py (the layout), written from its description in ECOSYSTEM.md 1.3.
#pragma once
#include "data/token_layout.h"

namespace octet::data {

// Does it begin with one of llm.c's magic numbers (that of its evaluation files included, which parse_llmc refuses)?
bool looks_like_llmc(const ByteReader& reader);

// Errors (ExitCode::data): shorter than the header, magic, version, negative count, a size other than header + tokens, no tokens; and those
// of find_documents, which cuts the documents.
TokenLayout parse_llmc(const ByteReader& reader, int64_t eod_id);

}  // namespace octet::data
