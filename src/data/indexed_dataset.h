// Megatron IndexedDataset: PREFIX.idx describes PREFIX.bin. Little-endian, no padding, no checksum:
//
//   .idx   9 bytes "MMIDIDX\0\0" | u64 version 1 | u8 dtype | u64 S sequences | u64 D = documents + 1
//          i32 lengths[S] (tokens) | i64 pointers[S] (bytes into .bin) | i64 document_indices[D] (first 0, last S) | i8 modes[S] (optional)
//   .bin   the tokens of all sequences back to back
//
// Source: NVIDIA Megatron-LM, megatron/core/datasets/indexed_dataset.py (format), read and written here from the layout above.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/output_file.h"

namespace octet::data {

// Codes as stored in the index. The floating-point codes 6 and 7 are no token types and are refused.
enum class TokenType : uint8_t { u8 = 1, i8 = 2, i16 = 3, i32 = 4, i64 = 5, u16 = 8 };

int64_t size_bytes(TokenType type);
std::string_view name(TokenType type);          // NumPy's names: "uint16", ...
TokenType token_type_for(int64_t vocab_size);   // Megatron's rule: uint16 below 65,500 ids, else int32

// Read-only view of a token file pair. The index is held in memory (8 bytes a sequence, 8 a document), tokens are read from the file
// on demand; const members may be called from several threads.
class IndexedDataset {
 public:
  // Errors (ExitCode::data, naming the file): missing, magic, version, dtype, truncated or overlong index, negative length, pointers that
  // are not the running sum of the lengths, document indices that do not rise from 0 to S, a .bin of another size, non-text modes.
  static IndexedDataset open(const std::string& prefix);

  int64_t sequences() const { return static_cast<int64_t>(starts_.size()) - 1; }
  int64_t documents() const { return static_cast<int64_t>(document_ends_.size()) - 1; }
  int64_t tokens() const { return starts_.back(); }
  int64_t length(int64_t sequence) const { return starts_[at(sequence + 1)] - starts_[at(sequence)]; }
  // First token of a sequence in the whole file; start(sequences()) == tokens().
  int64_t start(int64_t sequence) const { return starts_[at(sequence)]; }
  // Sequence that holds token `position` of the file.
  int64_t sequence_of(int64_t position) const;
  // Sequences [begin, end) of a document.
  int64_t document_begin(int64_t document) const { return document_ends_[at(document)]; }
  int64_t document_end(int64_t document) const { return document_ends_[at(document + 1)]; }
  TokenType type() const { return type_; }
  const std::string& prefix() const { return prefix_; }
  const std::string& bin_path() const { return bin_.path().native(); }

  // tokens [offset, offset + count) of a sequence to out[count]. Ids are returned as stored (negative ones too); an int64 id
  // outside int32 is an Error (ExitCode::data). No allocation.
  void read(int64_t sequence, int64_t offset, int64_t count, int32_t* out) const;
  // The same by position in the whole file, across sequences.
  void read_flat(int64_t position, int64_t count, int32_t* out) const;

  // Calls visit(position, ids) over all tokens in file order, in pieces.
  void scan(const std::function<void(int64_t position, std::span<const int64_t> ids)>& visit) const;
  // Largest id; reads the whole file. -1 when there are no tokens.
  int64_t max_token() const;
  // Reads the whole file; the first id outside [0, vocab_size) is an Error as by throw_bad_token.
  void check_tokens(int64_t vocab_size) const;
  // Error (ExitCode::data) that names file, sequence, position in it, id and vocab_size.
  [[noreturn]] void throw_bad_token(int64_t position, int64_t id, int64_t vocab_size) const;

 private:
  IndexedDataset() = default;
  static size_t at(int64_t i) { return static_cast<size_t>(i); }
  void parse_index(const File& file);
  void parse_lengths(const File& file, int64_t sequences);
  void parse_documents(const File& file, int64_t sequences, int64_t entries);
  void check_modes(const File& file, int64_t offset, int64_t sequences) const;
  void read_ids(int64_t position, int64_t count, int64_t* out) const;

  std::string prefix_;
  TokenType type_ = TokenType::u16;
  std::vector<int64_t> starts_;         // [sequences + 1], tokens
  std::vector<int64_t> document_ends_;  // [documents + 1], sequences
  File bin_;
};

// Writes a pair, one sequence a document, in constant memory. Both files appear under their final names only in finish(), .bin first;
// without it nothing remains, unless keep() was called: then PREFIX.bin.tmp and PREFIX.lengths.tmp stay, and a writer made with `done` goes on
// behind what checkpoint() has put on disk. Errors: ExitCode::data when an output exists, another writer is at it, a token does not fit the type or a
// document has 2^31 tokens or more; ExitCode::checkpoint on a full disk.
class IndexedDatasetWriter {
 public:
  struct Done {
    int64_t documents = 0, tokens = 0;
  };
  IndexedDatasetWriter(const std::string& prefix, TokenType type);
  IndexedDatasetWriter(const std::string& prefix, TokenType type, Done done);

  void append(std::span<const int32_t> tokens);  // to the current document
  void end_document();                           // an empty document is written as a sequence of length 0
  void finish();                                 // seal() and publish()
  void seal();                                   // no more documents: index written, all on disk, under temporary names
  void publish(const std::function<void()>& before_index = {});  // rename .bin, call, rename .idx
  Done checkpoint();                             // tokens and lengths so far to disk; between documents
  void keep();

  int64_t document_tokens() const { return document_tokens_; }  // so far, of the current document
  int64_t documents() const { return documents_; }
  int64_t tokens() const { return tokens_; }

 private:
  template <class T>
  void append_as(std::span<const int32_t> tokens);
  void write_index();
  void each_length(const std::function<void(int32_t)>& visit);

  std::string prefix_;
  TokenType type_;
  OutputFile bin_, idx_, lengths_;  // lengths_ only ever exists under its temporary name
  int64_t document_tokens_ = 0, documents_ = 0, tokens_ = 0;
};

}  // namespace octet::data
