#include "data/llmc.h"

#include <fmt/format.h>

#include "data/raw_tokens.h"

namespace octet::data {
namespace {
constexpr uint64_t llmc_header_bytes = 1024;
constexpr int32_t magic_u16 = 20240520, magic_eval = 20240522, magic_u32 = 20240801;
const char* const llmc_fix = "make it again with llm.c's scripts, or copy it again";
}  // namespace

bool looks_like_llmc(const ByteReader& reader) {
  if (reader.bytes < sizeof(int32_t)) return false;
  int32_t magic = 0;
  reader.read_exact(0, &magic, sizeof(magic));
  return magic == magic_u16 || magic == magic_u32 || magic == magic_eval;
}

TokenLayout parse_llmc(const ByteReader& reader, int64_t eod_id) {
  if (reader.bytes < llmc_header_bytes) {
    refuse_file(reader.name, fmt::format("has {} bytes, too few for the {}-byte header of an llm.c token file", reader.bytes, llmc_header_bytes), llmc_fix);
  }
  std::array<int32_t, 3> header{};   // magic, version, tokens
  reader.read_exact(0, header.data(), sizeof(header));
  const auto [magic, version, count] = header;
  if (magic == magic_eval) {
    refuse_file(reader.name, "is an llm.c evaluation file (multiple choice), no text to train on", "give a file of its train or val split");
  }
  if (magic != magic_u16 && magic != magic_u32) {
    refuse_file(reader.name, fmt::format("is no llm.c token file (magic {}, not {} or {})", magic, magic_u16, magic_u32), "check the path and the format");
  }
  const int32_t known = magic == magic_u16 ? 1 : 7;
  if (version != known) refuse_file(reader.name, fmt::format("has format version {}; with magic {} only version {} is known", version, magic, known), llmc_fix);
  if (count < 1) refuse_file(reader.name, fmt::format("announces {} tokens", count), llmc_fix);
  const TokenType type = magic == magic_u16 ? TokenType::u16 : TokenType::u32;
  const uint64_t expected = llmc_header_bytes + static_cast<uint64_t>(count) * static_cast<uint64_t>(size_bytes(type));
  if (reader.bytes != expected) {
    refuse_file(reader.name, fmt::format("has {} bytes, but its header announces {} tokens of {} = {} bytes", reader.bytes, count, name(type), expected),
        llmc_fix);
  }
  return find_documents(reader, type, llmc_header_bytes, count, eod_id);
}

}  // namespace octet::data
