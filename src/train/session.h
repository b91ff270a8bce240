// What a training run needs from outside, opened and checked before anything is printed or written: token files, samplers, the order of
// the blend, validation sets.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "data/gpt_dataset.h"
#include "data/loader.h"
#include "data/token_source.h"

namespace octet {

// A training source as a checkpoint keeps it: what was read of it, and what fixes the order of the rest. The optional members are
// absent in checkpoints of before blends.
struct SourceState {
  std::string path;
  int64_t samples = 0, tokens = 0;               // consumed
  data::SamplerPin sampler;
  std::optional<int64_t> epoch_tokens, block_samples;  // of the training split; samples before it is shuffled anew
  std::optional<uint64_t> index_cache;           // fingerprint of an order that was taken over
  std::optional<double> weight;                  // as configured
};

// The blend as a checkpoint keeps it.
struct BlendState {
  int64_t samples = 0;                           // that the first run planned, which the samplers were built for
  std::optional<uint64_t> cache;                 // fingerprint of an order that was taken over
  int64_t begins_at = 0;                         // samples the run had consumed when this order began: a resumed run was allowed other data
};

struct ValidationSet {
  std::string name;                              // "valid" for the valid share of data.train
  std::vector<data::MicroBatch> batches;
};

class DataSession {
 public:
  // Opens all sources and checks them: readable, long enough, every token id below the vocabulary (sources of up to 2^28 tokens are read
  // through; in larger ones the loader checks ids as they come). saved: the sources of the checkpoint resumed from, or null, with
  // the number of samples it consumed; sources must then be as many, as long, of the same weights and orders.
  // Errors: ExitCode::data for files, ExitCode::config where config and checkpoint, or config and a file's PREFIX.meta.json contradict each other.
  explicit DataSession(const RunConfig& config, const std::vector<SourceState>* saved = nullptr, const BlendState* saved_blend = nullptr, int64_t consumed = 0);

  size_t sources() const { return train_.size(); }
  const data::GptDataset& train(size_t source = 0) const { return *train_[source]; }
  // Share of source `source` in the blend.
  double share(size_t source) const { return shares_[source]; }
  const std::vector<ValidationSet>& validation() const { return validation_; }  // empty when eval.interval is 0
  const std::vector<std::string>& notes() const { return notes_; }              // about what was left out, for warnings
  // Nothing consumed yet, or as saved.
  const std::vector<SourceState>& states() const { return states_; }
  const BlendState& blend_state() const { return blend_state_; }
  // A loader that goes on behind `first_sample` consumed samples. reader: as StepLoader's. rank, ranks: LoaderOptions.
  std::unique_ptr<data::StepLoader> loader(int64_t first_sample, data::SampleReader reader = {}, int64_t rank = 0, int64_t ranks = 1) const;

 private:
  void open_train(const RunConfig& c, const std::vector<SourceState>* saved);
  void check_saved(const RunConfig& c, const std::vector<SourceState>& saved, const BlendState& saved_blend) const;
  void make_order(const RunConfig& c);
  void check_order(int64_t samples) const;
  void make_validation(const RunConfig& c);
  void check_meta(const std::string& path, const RunConfig& c);
  const data::TokenSource& open(const std::string& path, const std::string& format, const RunConfig& c);

  data::LoaderOptions options_;
  int64_t prefetch_;                             // micro-batches
  std::vector<std::unique_ptr<data::TokenSource>> files_;
  std::vector<std::unique_ptr<data::GptDataset>> train_;
  std::vector<double> shares_;
  std::optional<data::BlendOrder> order_;        // at its start
  std::vector<SourceState> states_;
  BlendState blend_state_;
  std::vector<ValidationSet> validation_;
  std::vector<std::string> notes_;
  std::optional<std::pair<std::string, std::string>> tokenizer_;   // of the first source that names one: path, checksum of the tokenizer
};

}  // namespace octet
