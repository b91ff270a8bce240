// Order and content of training samples, bit-compatible with Megatron-LM's GPTDataset (megatron/core/datasets/gpt_dataset.py).
//
// The documents (sequences of the file) of a split, repeated E times and shuffled, form one stream of E*T tokens. Window w is the S+1
// tokens that begin at stream token w*S, so neighbours share one token; there are n = (E*T - 1) / S windows. Sample i reads window shuffle[i].
//
//   E        smallest with E*T >= samples*S + 1
//   separate when E > 1 and fewer than int(0.80 * ((T-1)/S)) samples are wanted from the last epoch, that epoch is shuffled apart
//   RNG      one RandomState(seed): documents of the first E-1 epochs, of the last, then windows in the same two groups (or all as one)
//   partial  with partial samples n is rounded up, and the last window ends with the stream (integers; Megatron's helper does this in float32)
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "data/token_source.h"

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
SampleIndices build_sample_indices(const TokenSource& set, int64_t begin_sequence, int64_t end_sequence, int64_t seq_len, SamplerPin pin,
    uint32_t seed, bool partial = false);

// Where each of `windows` windows begins in the stream of `documents`, and where the one behind the last would: starts[windows].
std::vector<SampleIndices::Start> window_starts(const TokenSource& set, const std::vector<int32_t>& documents, int64_t seq_len, int64_t windows);

// Samples are defined for every i >= 0: block b = i / size() is built as above with seed + b (mod 2^32) and the same pin, and sample i
// is sample i % size() of it. Only block 0 exists in Megatron. So sample i is a pure function of (file, split, S, seed, pin, i).
// A block's indices (4 bytes a document and epoch, 12 a sample) are built when first needed; the two blocks used last are held.
// const members may be called from several threads.
class GptDataset {
 public:
  struct Segment {
    int64_t sequence, offset, count;
  };

  // Sequences [begin, end) of `set`, which must outlive this object; seq_len S >= 1. samples: how many the run wants (absent: one epoch);
  // pin: overrides what follows from it. `label` names the split in messages. partial: keep the last, shorter window.
  // Errors: ExitCode::data when the split has no sequences or fewer than S+1 tokens (partial: 2), or is too large for the indices (2^32
  // entries); ExitCode::config when the seed is not below 2^32 (NumPy's RandomState takes no other).
  GptDataset(const TokenSource& set, int64_t begin_sequence, int64_t end_sequence, int64_t seq_len, std::optional<int64_t> samples, uint64_t seed,
             std::optional<SamplerPin> pin = std::nullopt, std::string label = "train", bool partial = false);

  // Makes block 0 these indices, of a Megatron cache (data/sample_cache.h has checked them against the split). There are no further
  // blocks then: a sample beyond size() is an Error (ExitCode::data). Before the first sample is asked for.
  void take_order(SampleIndices indices);
  // Of the order taken over, FNV-1a of its documents and windows; 0 without one. Tells a resumed run that its cache is the same.
  uint64_t order_fingerprint() const { return fingerprint_; }

  int64_t seq_len() const { return seq_len_; }
  int64_t size() const { return block_samples_; }           // samples of one block
  int64_t tokens_per_epoch() const { return epoch_tokens_; }
  int64_t epochs() const { return pin_.epochs; }
  SamplerPin pin() const { return pin_; }
  const TokenSource& set() const { return *set_; }
  const std::string& label() const { return label_; }

  // The sample's tokens to tokens[S + 1]; returns how many: S + 1, or less in a partial window.
  int64_t sample(int64_t i, int32_t* tokens) const;
  int64_t sample_id(int64_t i) const;                       // block * size() + window: equal ids, equal tokens within a block
  std::vector<Segment> segments(int64_t i) const;           // where sample i's tokens come from

  // Windows of the split in file order, without shuffling or repetition: window w is the S+1 tokens from token w*S of the split.
  int64_t file_order_size() const { return windows_of(epoch_tokens_); }
  int64_t file_order_sample(int64_t w, int32_t* tokens) const;   // returns how many
  int64_t file_order_position(int64_t w) const { return set_->start(begin_) + w * seq_len_; }  // first token, in the whole source

 private:
  using Block = std::shared_ptr<const SampleIndices>;
  int64_t windows_of(int64_t tokens) const { return (tokens - 1) / seq_len_ + (partial_ && (tokens - 1) % seq_len_ != 0); }
  Block block(int64_t number) const;
  template <class Visit>
  void each_segment(const SampleIndices& indices, int64_t i, Visit&& visit) const;

  const TokenSource* set_;
  int64_t begin_, end_, seq_len_, epoch_tokens_ = 0, block_samples_ = 0;
  uint64_t seed_;
  SamplerPin pin_;
  std::string label_;
  bool partial_;
  uint64_t fingerprint_ = 0;
  Block taken_;                            // block 0 of a cache
  struct Held {
    int64_t number = -1;
    Block indices;
  };
  mutable std::mutex mutex_;               // guards the next line
  mutable std::array<Held, 2> held_;       // the one used last first
};

}  // namespace octet::data
