#include "train/session.h"

namespace octet {
namespace {
constexpr int64_t full_check_tokens = int64_t{1} << 28;  // about a second of reading
}

DataSession::DataSession(const RunConfig& c, std::optional<data::SamplerPin> pin) {
  set_ = std::make_unique<data::IndexedDataset>(data::IndexedDataset::open(c.data.train.front().path));
  if (set_->tokens() <= full_check_tokens) set_->check_tokens(c.model.vocab_size);
  const auto bounds = data::split_bounds(c.data.split, set_->sequences());
  const auto seed = static_cast<uint64_t>(c.data.seed.value_or(static_cast<int64_t>(c.run.seed)));
  train_ = std::make_unique<data::GptDataset>(*set_, bounds[0], bounds[1], c.data.seq_len, c.run.steps * c.batch.global, seed, pin, "train");
  options_.micro = c.batch.micro;
  options_.global = c.batch.global;
  options_.seq_len = c.data.seq_len;
  options_.vocab_size = c.model.vocab_size;
  options_.eod_id = c.data.eod_id;
  options_.eod_mask_loss = c.data.eod_mask_loss;
  options_.document_mask = c.data.document_mask;
  options_.reset_position_ids = c.data.reset_position_ids;
  // data.prefetch counts micro-batches; the loader reads whole steps.
  const int64_t micro_batches = c.batch.global / c.batch.micro;
  options_.prefetch_steps = (c.data.prefetch + micro_batches - 1) / micro_batches;
  if (c.eval.interval > 0) {
    const data::GptDataset valid(*set_, bounds[1], bounds[2], c.data.seq_len, std::nullopt, seed, std::nullopt, "valid");
    validation_ = data::fixed_batches(valid, c.eval.samples, options_);
  }
}

std::unique_ptr<data::StepLoader> DataSession::loader(int64_t first_sample) {
  data::LoaderOptions o = options_;
  o.first_sample = first_sample;
  return std::make_unique<data::StepLoader>(*train_, o);
}

}  // namespace octet
