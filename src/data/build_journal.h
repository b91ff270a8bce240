// PREFIX.resume.json: how far an interrupted `octet data build` came, written whole at each commit. Together with PREFIX.bin.tmp and
// PREFIX.lengths.tmp it is what --resume needs; a finished or failed build removes it.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "data/build_reader.h"

namespace octet::data {

struct BuildProgress {
  std::string job;               // JSON text: everything the output depends on (inputs with size and time, tokenizer, options)
  bool publishing = false;       // all is written; the renames to the final names have begun
  ReadPosition position;
  int64_t documents = 0, tokens = 0, empty_documents = 0, bytes_read = 0;
};

std::string to_json(const BuildProgress& progress);
// Strict. Throws Error(ExitCode::data).
BuildProgress parse_build_progress(std::string_view text, const std::string& where);

std::string journal_path(const std::string& prefix);
std::optional<BuildProgress> read_journal(const std::string& prefix);
void write_journal(const std::string& prefix, const BuildProgress& progress);  // atomic and on disk
void remove_journal(const std::string& prefix);

}  // namespace octet::data
