// Sample orders that a Megatron-LM run has cached, taken over by path (their names hold a hash that only Megatron's tokenizer settings give):
//
//   PREFIX = DIR/HASH-GPTDataset-train        PREFIX-document_index.npy   int32 [E * sequences of the split]
//                                             PREFIX-sample_index.npy     int32 or int64 [n + 1, 2]: place in it, token
//                                             PREFIX-shuffle_index.npy    uint32 or int64 [n]
//   PREFIX = DIR/HASH-BlendedDataset-train    PREFIX-dataset_index.npy           int16 [samples]
//                                             PREFIX-dataset_sample_index.npy    int64 [samples]
//
// They are believed in nothing: a cache that was not made for these tokens, this split and this sequence length is refused.
#pragma once
#include <string>
#include <vector>

#include "data/gpt_dataset.h"
#include "data/npy.h"

namespace octet::data {

// Errors (ExitCode::data): other types or shapes; documents outside [begin, end) or not all equally often; window starts that are not S
// tokens apart in the stream of these documents; a shuffle that is no permutation; another number of windows than the stream has
// (rounded down, or up with partial).
SampleIndices parse_sample_cache(const ByteReader& documents, const ByteReader& starts, const ByteReader& shuffle, const TokenSource& set,
    int64_t begin_sequence, int64_t end_sequence, int64_t seq_len, bool partial);
SampleIndices read_sample_cache(const std::string& prefix, const TokenSource& set, int64_t begin_sequence, int64_t end_sequence, int64_t seq_len,
    bool partial);

// Source of each sample. Errors (ExitCode::data): other types or shapes, arrays of different lengths, no samples, a source outside
// [0, sources), samples of a source that are not 0, 1, 2, ...
std::vector<int16_t> parse_blend_cache(const ByteReader& sources_of, const ByteReader& samples_of, int64_t sources);
std::vector<int16_t> read_blend_cache(const std::string& prefix, int64_t sources);

}  // namespace octet::data
