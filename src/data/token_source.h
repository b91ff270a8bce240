// Tokens to train on, whatever their file format: sequences with length(i) and read(i, offset, n).
//
//   megatron    PREFIX.idx and PREFIX.bin                                                       (data/indexed_dataset.h)
//   llmc        .bin of llm.c and modded-nanoGPT, uint16 or uint32                              (data/llmc.h)
//   datatrove   X.ds with X.ds.index and X.ds.metadata                                          (data/datatrove.h)
//   raw_u16, raw_u32   tokens and nothing else, such as nanoGPT's train.bin                     (data/raw_tokens.h)
//
// automatic recognises all but the raw ones: PATH.idx makes a Megatron pair, a name ending in .ds (or PATH.ds) a datatrove file, the
// magic number at the start an llm.c file. A path with * or ? is every file that matches, in the order of their names (bytes), one
// after the other as one source; companion files (.idx of .bin, .ds.index, .ds.metadata, .ds.loss, .meta.json) are no files of their own.
//
// llmc and raw files do not say where documents end: there a document ends with each token eod_id, which belongs to it, and with the
// file. A file without that id is one document. Opening such a file reads it once.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/token_layout.h"

namespace octet::data {

enum class TokenFormat { automatic, megatron, llmc, datatrove, raw_u16, raw_u32 };

// The config's names: auto, megatron, llmc, ... Errors: ExitCode::config.
TokenFormat token_format(const std::string& name);
std::string_view name(TokenFormat format);

// The paths of the single sources that `path` stands for: itself without * and ?, else every match. Errors: ExitCode::data when nothing matches.
std::vector<std::string> expand_token_path(const std::string& path);

// Read-only. Boundaries are held in memory (8 bytes a sequence, 8 a document), tokens are read from the files on demand; const members
// may be called from several threads.
class TokenSource {
 public:
  // Errors (ExitCode::data, naming the file): what the format's parser refuses, a format that cannot be recognised.
  static TokenSource open(const std::string& path, TokenFormat format = TokenFormat::automatic, int64_t eod_id = 256);

  int64_t sequences() const { return static_cast<int64_t>(starts_.size()) - 1; }
  int64_t documents() const { return static_cast<int64_t>(document_ends_.size()) - 1; }
  int64_t tokens() const { return starts_.back(); }
  int64_t length(int64_t sequence) const { return starts_[at(sequence + 1)] - starts_[at(sequence)]; }
  // First token of a sequence in the whole source; start(sequences()) == tokens().
  int64_t start(int64_t sequence) const { return starts_[at(sequence)]; }
  // Sequence that holds token `position` of the source.
  int64_t sequence_of(int64_t position) const;
  // Sequences [begin, end) of a document.
  int64_t document_begin(int64_t document) const { return document_ends_[at(document)]; }
  int64_t document_end(int64_t document) const { return document_ends_[at(document + 1)]; }

  const std::string& prefix() const { return path_; }             // as given to open()
  int64_t files() const { return static_cast<int64_t>(parts_.size()); }
  TokenFormat format() const { return parts_.front().format; }    // of the first file, as are the next two
  TokenType type() const { return parts_.front().type; }
  const std::string& bin_path() const { return parts_.front().file.path().native(); }
  int64_t token_bytes() const;                                    // of all tokens in all files

  // tokens [offset, offset + count) of a sequence to out[count]. Ids are returned as stored (negative ones too); an id
  // outside int32 is an Error (ExitCode::data). No allocation.
  void read(int64_t sequence, int64_t offset, int64_t count, int32_t* out) const;
  // The same by position in the whole source, across sequences and files.
  void read_flat(int64_t position, int64_t count, int32_t* out) const;

  // Calls visit(position, ids) over all tokens in order, in pieces.
  void scan(const std::function<void(int64_t position, std::span<const int64_t> ids)>& visit) const;
  // Largest id; reads everything. -1 when there are no tokens.
  int64_t max_token() const;
  // Reads everything; the first id outside [0, vocab_size) is an Error as by throw_bad_token.
  void check_tokens(int64_t vocab_size) const;
  // Error (ExitCode::data) that names the file, sequence in it, position in that, id and vocab_size.
  [[noreturn]] void throw_bad_token(int64_t position, int64_t id, int64_t vocab_size) const;

 private:
  struct Part {
    File file;   // that holds the tokens
    TokenFormat format = TokenFormat::megatron;
    TokenType type = TokenType::u16;
    uint64_t first_byte = 0;
    int64_t first_token = 0, first_sequence = 0;
  };

  TokenSource() = default;
  static size_t at(int64_t i) { return static_cast<size_t>(i); }
  void add(File file, TokenFormat format, TokenLayout layout);
  void add_path(const std::string& path, TokenFormat format, int64_t eod_id);
  const Part& part_of(int64_t position) const;
  // At most `most` ids from `position` on, all of one file; returns how many.
  int64_t read_ids(int64_t position, int64_t most, int64_t* out) const;

  std::string path_;
  std::vector<Part> parts_;
  std::vector<int64_t> starts_{0};         // [sequences + 1], tokens
  std::vector<int64_t> document_ends_{0};  // [documents + 1], sequences
};

}  // namespace octet::data
