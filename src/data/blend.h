// Order of a blend: which source each sample comes from, and which of its samples it is, as Megatron-LM's BlendedDataset
// (megatron/core/datasets/blended_dataset.py, helpers.cpp).
//
//   weighted    sample i comes from the first source with the largest w_k * max(i, 1) - (samples taken from k so far), in double; the
//               weights are divided by their sum. A source's own samples follow one another: 0, 1, 2, ... Sources repeat as they must:
//               each is built for built_samples() of the run's samples, and GptDataset goes on behind those.
//   exhaustive  (no weights) weights are the sources' sizes, and only sources with samples left are looked at: the pass over the blend takes
//               every sample of one epoch exactly once. The next pass is the same order over the sources' next epochs.
//   recorded    the order of a Megatron cache.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace octet::data {

struct BlendPick {
  int64_t source = 0;
  int64_t sample = 0;   // of that source
  bool operator==(const BlendPick&) const = default;
};

// The weights divided by their sum, which is NumPy's pairwise one so that the last bits agree. Errors: ExitCode::config unless all are
// finite and above 0.
std::vector<double> normalised_weights(std::vector<double> weights);

// Samples of a source in a blend of `samples`: ceil(samples * w); and what Megatron builds for it, ceil(that * 1.005).
int64_t target_samples(double weight, int64_t samples);
int64_t built_samples(double weight, int64_t samples);

// Walks an order from sample 0. Costs one pass over the sources a sample.
class BlendOrder {
 public:
  static BlendOrder weighted(std::vector<double> weights);
  static BlendOrder exhaustive(std::vector<int64_t> sizes);
  // As exhaustive or, with weights, as weighted among the sources that have samples left; ends when none has.
  static BlendOrder once(std::vector<int64_t> sizes, std::vector<double> weights = {});
  // source_of[i] is sample i's source, below `sources`.
  static BlendOrder recorded(std::vector<int16_t> source_of, int64_t sources);

  int64_t sources() const { return static_cast<int64_t>(taken_.size()); }
  int64_t position() const { return position_; }                  // number of the next sample
  const std::vector<int64_t>& taken() const { return taken_; }    // samples of each source before it
  bool ended() const { return ends_at() >= 0 && position_ >= ends_at(); }
  int64_t ends_at() const { return (sizes_.empty() && recorded_.empty()) || repeat_ ? -1 : pass_samples_; }  // samples it has; -1: no end
  BlendPick next();
  void skip_to(int64_t position);                                 // not backwards

 private:
  int64_t pick() const;

  std::vector<double> weights_;
  std::vector<int64_t> sizes_;        // empty: no source ends
  bool repeat_ = false;
  std::vector<int16_t> recorded_;
  std::vector<int64_t> taken_, in_pass_;
  int64_t position_ = 0, pass_position_ = 0, pass_samples_ = 0;
};

}  // namespace octet::data
