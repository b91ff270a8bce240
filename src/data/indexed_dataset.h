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

#include "data/output_file.h"
#include "data/token_source.h"

namespace octet::data {

// The index alone. Errors (ExitCode::data, naming it): magic, version, dtype, truncated or overlong index, negative length, pointers that
// are not the running sum of the lengths, document indices that do not rise from 0 to S, non-text modes.
TokenLayout parse_megatron_index(const ByteReader& idx);

// Opens the pair. Errors besides: a missing file, a .bin of another size than the index describes.
File open_megatron(const std::string& prefix, TokenLayout& layout);

// Readers of pairs say TokenSource::open(prefix).
using IndexedDataset = TokenSource;

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
