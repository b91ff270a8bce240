#include "data/loader.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/check.h"
#include "core/philox.h"

namespace octet::data {
namespace {
MicroBatch make_batch(int64_t samples, int64_t seq_len) {
  const auto n = static_cast<size_t>(samples * seq_len);
  MicroBatch batch;
  batch.tokens.resize(n);
  batch.labels.resize(n);
  batch.positions.resize(n);
  batch.document_start.resize(n);
  batch.samples = samples;
  batch.seq_len = seq_len;
  return batch;
}

// Index of the first of `have` ids outside the vocabulary, or -1.
int64_t first_bad_token(const int32_t* window, int64_t have, int64_t vocab_size) {
  for (int64_t t = 0; t < have; ++t) {
    if (window[t] < 0 || window[t] >= vocab_size) return t;
  }
  return -1;
}

[[noreturn]] void throw_bad_token(const GptDataset& dataset, int64_t sample, int64_t bad, int32_t id, int64_t vocab_size) {
  for (const auto& segment : dataset.segments(sample)) {
    if (bad < segment.count) dataset.set().throw_bad_token(dataset.set().start(segment.sequence) + segment.offset + bad, id, vocab_size);
    bad -= segment.count;
  }
  OCTET_CHECK(false, "token {} behind sample {}", bad, sample);
}

void check_options(const GptDataset& dataset, const LoaderOptions& o) {
  OCTET_CHECK(o.micro >= 1 && o.global >= 1 && o.rank >= 0 && o.rank < o.ranks && o.global % (o.micro * o.ranks) == 0, "global batch {} of micro-batches of {}, rank {} of {}", o.global, o.micro,
              o.rank, o.ranks);
  OCTET_CHECK(o.seq_len == dataset.seq_len(), "loader seq_len {}, dataset seq_len {}", o.seq_len, dataset.seq_len());
  OCTET_CHECK(o.vocab_size >= 1 && o.prefetch_steps >= 0 && o.readers >= 1 && o.first_sample >= 0,
      "vocab_size {}, prefetch_steps {}, readers {}, first_sample {}", o.vocab_size, o.prefetch_steps, o.readers, o.first_sample);
}
}  // namespace

uint64_t sample_hash(const StepBatch& batch) {
  uint64_t hash = fnv1a64("");
  const auto add = [&](int64_t value) {
    for (int byte = 0; byte < 8; ++byte) hash = (hash ^ (static_cast<uint64_t>(value) >> (8 * byte) & 0xff)) * 1099511628211ull;
  };
  for (size_t i = 0; i < batch.sample_ids.size(); ++i) {
    add(batch.sample_sources[i]);
    add(batch.sample_ids[i]);
  }
  return hash;
}

void fill_row(MicroBatch& batch, int64_t row, const int32_t* window, const LoaderOptions& options, int64_t have) {
  const auto base = static_cast<size_t>(row * batch.seq_len);
  if (have < 0) have = batch.seq_len + 1;
  int32_t start = 0;  // of the document at hand
  for (int32_t t = 0; t < batch.seq_len; ++t) {
    const size_t at = base + static_cast<size_t>(t);
    const bool real = t < have;
    const bool eod = real && window[t] == options.eod_id;
    const bool loss = t + 1 < have && !(eod && options.eod_mask_loss) && !(options.pad_id && window[t + 1] == *options.pad_id);
    batch.tokens[at] = real ? window[t] : options.pad_id.value_or(0);
    batch.labels[at] = loss ? window[t + 1] : -1;
    batch.positions[at] = options.reset_position_ids ? t - start : t;
    batch.document_start[at] = options.document_mask ? start : 0;
    batch.valid_tokens += loss;
    if (eod) start = t + 1;
  }
}

StepLoader::StepLoader(const GptDataset& dataset, const LoaderOptions& options, SampleReader reader)
    : StepLoader({&dataset}, BlendOrder::weighted({1.0}), options, std::move(reader)) {}

StepLoader::StepLoader(std::vector<const GptDataset*> sources, BlendOrder order, const LoaderOptions& options, SampleReader reader)
    : sources_(std::move(sources)), order_(std::move(order)), options_(options), reader_(std::move(reader)) {
  OCTET_CHECK(static_cast<int64_t>(sources_.size()) == order_.sources(), "{} sources, an order of {}", sources_.size(), order_.sources());
  for (const GptDataset* source : sources_) check_options(*source, options);
  if (!reader_) reader_ = [](const GptDataset& dataset, int64_t sample, int32_t* tokens) { return dataset.sample(sample, tokens); };
  order_.skip_to(options_.first_sample);
  ring_.resize(static_cast<size_t>(options_.prefetch_steps) + 1);
  for (Slot& slot : ring_) {
    StepBatch& step = slot.batch;
    for (int64_t m = 0; m < own_micro_batches(); ++m) step.micro.push_back(make_batch(options_.micro, options_.seq_len));
    step.sample_ids.resize(static_cast<size_t>(options_.global));
    step.sample_sources.resize(static_cast<size_t>(options_.global));
    step.source_samples.resize(sources_.size());
  }
  for (int64_t i = 0; i < options_.readers; ++i) threads_.emplace_back([this] { work(); });
}

StepLoader::~StepLoader() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

// Which samples the task reads; under the lock, for the order is walked task by task.
void StepLoader::plan(Slot& slot, Task& task) {
  StepBatch& batch = slot.batch;
  if (task.micro == 0) {
    slot.step = task.step;
    slot.missing = own_micro_batches();
    slot.failed_micro = -1;
    slot.failure = nullptr;
    batch.first_sample = options_.first_sample + task.step * options_.global;
    std::fill(batch.source_samples.begin(), batch.source_samples.end(), 0);
  }
  task.picks.clear();
  // One micro-batch of each rank.
  const int64_t per_turn = options_.micro * options_.ranks;
  for (int64_t i = 0; i < per_turn; ++i) {
    const BlendPick pick = order_.next();
    if (i / options_.micro == options_.rank) task.picks.push_back(pick);
    const auto at = static_cast<size_t>(task.micro * per_turn + i);
    batch.sample_sources[at] = pick.source;
    batch.sample_ids[at] = sources_[static_cast<size_t>(pick.source)]->sample_id(pick.sample);
    ++batch.source_samples[static_cast<size_t>(pick.source)];
  }
}

bool StepLoader::claim(Task& task) {
  const int64_t per_step = own_micro_batches(), size = static_cast<int64_t>(ring_.size());
  std::unique_lock lock(mutex_);
  // Step k takes the place of step k - size, which must have been handed out and let go.
  changed_.wait(lock, [&] { return stop_ || order_failure_ || next_task_ / per_step - size < (held_ >= 0 ? held_ : consumed_); });
  if (stop_ || order_failure_) return false;
  task.step = next_task_ / per_step;
  task.micro = next_task_ % per_step;
  try {
    plan(slot_of(task.step), task);
  } catch (...) {
    order_failure_ = std::current_exception();
    order_failed_step_ = task.step;
    changed_.notify_all();
    return false;
  }
  ++next_task_;
  return true;
}

void StepLoader::fill(StepBatch& batch, const Task& task, std::vector<int32_t>& window) const {
  MicroBatch& micro = batch.micro[static_cast<size_t>(task.micro)];
  micro.valid_tokens = 0;
  for (int64_t row = 0; row < options_.micro; ++row) {
    const BlendPick pick = task.picks[static_cast<size_t>(row)];
    const GptDataset& source = *sources_[static_cast<size_t>(pick.source)];
    const int64_t have = reader_(source, pick.sample, window.data());
    if (const int64_t bad = first_bad_token(window.data(), have, options_.vocab_size); bad >= 0) {
      throw_bad_token(source, pick.sample, bad, window[static_cast<size_t>(bad)], options_.vocab_size);
    }
    fill_row(micro, row, window.data(), options_, have);
  }
}

void StepLoader::work() {
  std::vector<int32_t> window(static_cast<size_t>(options_.seq_len) + 1);
  Task task;
  while (claim(task)) {
    Slot& slot = slot_of(task.step);
    std::exception_ptr failure;
    try {
      fill(slot.batch, task, window);
    } catch (...) {
      failure = std::current_exception();
    }
    {
      const std::lock_guard lock(mutex_);
      // Of several failures of a step the first in sample order counts, whichever thread met it first.
      if (failure && (slot.failed_micro < 0 || task.micro < slot.failed_micro)) {
        slot.failed_micro = task.micro;
        slot.failure = failure;
      }
      --slot.missing;
    }
    changed_.notify_all();
  }
}

const StepBatch& StepLoader::next() {
  std::unique_lock lock(mutex_);
  held_ = -1;
  changed_.notify_all();
  Slot& slot = slot_of(consumed_);
  changed_.wait(lock, [&] { return (slot.step == consumed_ && slot.missing == 0) || order_failed_step_ == consumed_; });
  if (order_failed_step_ == consumed_) std::rethrow_exception(order_failure_);
  if (slot.failure) std::rethrow_exception(slot.failure);
  held_ = consumed_++;
  slot.batch.valid_tokens = 0;
  for (const MicroBatch& micro : slot.batch.micro) slot.batch.valid_tokens += micro.valid_tokens;
  return slot.batch;
}

std::vector<FileWindow> blended_windows(const std::vector<const GptDataset*>& splits, const std::vector<double>& weights, int64_t samples) {
  std::vector<int64_t> sizes;
  for (const GptDataset* split : splits) sizes.push_back(split->file_order_size());
  BlendOrder order = BlendOrder::once(std::move(sizes), weights);
  std::vector<FileWindow> windows;
  while (static_cast<int64_t>(windows.size()) < samples && !order.ended()) {
    const BlendPick pick = order.next();
    windows.push_back({splits[static_cast<size_t>(pick.source)], pick.sample});
  }
  return windows;
}

std::vector<MicroBatch> window_batches(const std::vector<FileWindow>& windows, const LoaderOptions& options) {
  const auto count = static_cast<int64_t>(windows.size());
  std::vector<MicroBatch> batches;
  std::vector<int32_t> window(static_cast<size_t>(options.seq_len) + 1);
  for (int64_t first = 0; first < count; first += options.micro) {
    batches.push_back(make_batch(std::min(options.micro, count - first), options.seq_len));
    for (int64_t row = 0; row < batches.back().samples; ++row) {
      const auto& [dataset, w] = windows[static_cast<size_t>(first + row)];
      const int64_t have = dataset->file_order_sample(w, window.data());
      const int64_t bad = first_bad_token(window.data(), have, options.vocab_size);
      if (bad >= 0) dataset->set().throw_bad_token(dataset->file_order_position(w) + bad, window[static_cast<size_t>(bad)], options.vocab_size);
      fill_row(batches.back(), row, window.data(), options, have);
    }
  }
  return batches;
}

std::vector<MicroBatch> fixed_batches(const GptDataset& dataset, int64_t samples, const LoaderOptions& options) {
  check_options(dataset, options);
  if (samples < 1) throw Error(ExitCode::config, fmt::format("a validation set of {} samples", samples), "eval.samples", "give at least 1");
  return window_batches(blended_windows({&dataset}, {}, samples), options);
}

}  // namespace octet::data
