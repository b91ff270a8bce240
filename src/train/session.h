// What a training run needs from outside, opened and checked before anything is printed or written: token files, samplers, the plan.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "data/gpt_dataset.h"
#include "data/indexed_dataset.h"
#include "data/loader.h"

namespace octet {

class DataSession {
 public:
  // Opens the training source and checks it: readable, long enough, every token id below the vocabulary (files of up to
  // 2^28 tokens are read through; in larger ones the loader checks ids as they come). pin: of the checkpoint resumed from.
  DataSession(const RunConfig& config, std::optional<data::SamplerPin> pin);

  data::GptDataset& train() { return *train_; }
  const data::IndexedDataset& set() const { return *set_; }
  const std::vector<data::MicroBatch>& validation() const { return validation_; }  // empty when eval.interval is 0
  // A loader that goes on behind `first_sample` consumed samples.
  std::unique_ptr<data::StepLoader> loader(int64_t first_sample);

 private:
  data::LoaderOptions options_;
  std::unique_ptr<data::IndexedDataset> set_;
  std::unique_ptr<data::GptDataset> train_;
  std::vector<data::MicroBatch> validation_;
};

}  // namespace octet
