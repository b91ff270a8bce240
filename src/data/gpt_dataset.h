// Order and content of training samples, bit-compatible with Megatron-LM's GPTDataset (megatron/core/datasets/gpt_dataset.py).
//
// The documents (sequences of the file) of a split, repeated E times and shuffled, form one stream of E*T tokens. Window w is the S+1
// tokens that begin at stream token w*S, so neighbours share one token; there are n = (E*T - 1) / S windows. Sample i reads window shuffle[i].
//
//   E        smallest with E*T >= samples*S + 1
//   separate when E > 1 and fewer than int(0.80 * ((T-1)/S)) samples are wanted from the last epoch, that epoch is shuffled apart
//   RNG      one RandomState(seed): documents of the first E-1 epochs, of the last, then windows in the same two groups (or all as one)
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/indexed_dataset.h"

namespace octet::data {

// Boundaries of the train, valid and test parts of n sequences in file order: part p is [b[p], b[p+1]). `split` is up to three shares
// ("99,1,0", "969,30,1"; missing ones are 0), separated by commas, spaces, colons or slashes. b = round-half-even(cumulated share * n).
// Errors: ExitCode::config.
std::array<int64_t, 4> split_bounds(const std::string& split, int64_t n);

// What fixes the order beside (tokens, S, seed). Saved in a checkpoint and given back on resume, so that wanting more samples
// (a larger run.steps) does not reorder the earlier ones. Both members count: the shuffling of the last epoch depends on the
// number of samples wanted, not only the number of epochs.
struct SamplerPin {
  int64_t epochs = 1;
  bool separate_last_epoch = false;
  bool operator==(const SamplerPin&) const = default;
};

// Megatron's rule above. Errors: ExitCode::data when samples*seq_len overflows.
SamplerPin sampler_pin(int64_t tokens_per_epoch, int64_t seq_len, std::optional<int64_t> samples);

// The three indices of one block of E epochs; exposed for tests.
struct SampleIndices {
  struct Start {
    uint32_t document;  // place in `documents`
    int32_t offset;     // token in it
  };
  std::vector<int32_t> documents;  // [E * sequences of the split], sequence numbers of the file
  std::vector<Start> starts;       // [n + 1]
  std::vector<uint32_t> shuffle;   // [n]
};
SampleIndices build_sample_indices(const IndexedDataset& set, int64_t begin_sequence, int64_t end_sequence, int64_t seq_len, SamplerPin pin,
    uint32_t seed);

// Samples are defined for every i >= 0: block b = i / size() is built as above with seed + b (mod 2^32) and the same pin, and sample i
// is sample i % size() of it. Only block 0 exists in Megatron. So sample i is a pure function of (file, split, S, seed, pin, i).
// One block's indices are held at a time (4 bytes a document and epoch, 12 a sample), built when first needed. Not thread-safe.
class GptDataset {
 public:
  struct Segment {
    int64_t sequence, offset, count;
  };

  // Sequences [begin, end) of `set`, which must outlive this object; seq_len S >= 1. samples: how many the run wants (absent: one epoch);
  // pin: overrides what follows from it. `label` names the split in messages.
  // Errors: ExitCode::data when the split has no sequences or fewer than S+1 tokens, or is too large for the indices (2^32 entries);
  // ExitCode::config when the seed is not below 2^32 (NumPy's RandomState takes no other).
  GptDataset(const IndexedDataset& set, int64_t begin_sequence, int64_t end_sequence, int64_t seq_len, std::optional<int64_t> samples, uint64_t seed,
             std::optional<SamplerPin> pin = std::nullopt, std::string label = "train");

  int64_t seq_len() const { return seq_len_; }
  int64_t size() const { return block_samples_; }           // samples of one block
  int64_t tokens_per_epoch() const { return epoch_tokens_; }
  int64_t epochs() const { return pin_.epochs; }
  SamplerPin pin() const { return pin_; }
  const IndexedDataset& set() const { return *set_; }
  const std::string& label() const { return label_; }

  void sample(int64_t i, int32_t* tokens);                  // tokens[S + 1]
  int64_t sample_id(int64_t i);                             // block * size() + window: equal ids, equal tokens within a block
  std::vector<Segment> segments(int64_t i);                 // where sample i's S+1 tokens come from

  // Windows of the split in file order, without shuffling or repetition: window w is the S+1 tokens from token w*S of the split.
  int64_t file_order_size() const { return (epoch_tokens_ - 1) / seq_len_; }
  void file_order_sample(int64_t w, int32_t* tokens) const;
  int64_t file_order_position(int64_t w) const { return set_->start(begin_) + w * seq_len_; }  // first token, in the whole file

 private:
  // Window of sample i, with its block's indices loaded.
  int64_t locate(int64_t i);
  template <class Visit>
  void each_segment(int64_t window, Visit&& visit) const;

  const IndexedDataset* set_;
  int64_t begin_, end_, seq_len_, epoch_tokens_ = 0, block_samples_ = 0;
  uint64_t seed_;
  SamplerPin pin_;
  std::string label_;
  int64_t block_ = -1;  // whose indices are held
  SampleIndices indices_;
};

}  // namespace octet::data
