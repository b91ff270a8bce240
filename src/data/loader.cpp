#include "data/loader.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/check.h"

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

// Index of the first id outside the vocabulary, or -1.
int64_t first_bad_token(const std::vector<int32_t>& window, int64_t vocab_size) {
  for (size_t t = 0; t < window.size(); ++t) {
    if (window[t] < 0 || window[t] >= vocab_size) return static_cast<int64_t>(t);
  }
  return -1;
}

void check_options(const GptDataset& dataset, const LoaderOptions& o) {
  OCTET_CHECK(o.micro >= 1 && o.global >= 1 && o.global % o.micro == 0, "global batch {} of micro-batches of {}", o.global, o.micro);
  OCTET_CHECK(o.seq_len == dataset.seq_len(), "loader seq_len {}, dataset seq_len {}", o.seq_len, dataset.seq_len());
  OCTET_CHECK(o.vocab_size >= 1 && o.prefetch_steps >= 0 && o.first_sample >= 0, "vocab_size {}, prefetch_steps {}, first_sample {}", o.vocab_size,
      o.prefetch_steps,
              o.first_sample);
}
}  // namespace

void fill_row(MicroBatch& batch, int64_t row, const int32_t* window, const LoaderOptions& options) {
  const auto base = static_cast<size_t>(row * batch.seq_len);
  int32_t start = 0;  // of the document at hand
  for (int32_t t = 0; t < batch.seq_len; ++t) {
    const size_t at = base + static_cast<size_t>(t);
    const bool eod = window[t] == options.eod_id;
    const bool loss = !(eod && options.eod_mask_loss);
    batch.tokens[at] = window[t];
    batch.labels[at] = loss ? window[t + 1] : -1;
    batch.positions[at] = options.reset_position_ids ? t - start : t;
    batch.document_start[at] = options.document_mask ? start : 0;
    batch.valid_tokens += loss;
    if (eod) start = t + 1;
  }
}

StepLoader::StepLoader(GptDataset& dataset, const LoaderOptions& options) : dataset_(dataset), options_(options) {
  check_options(dataset, options);
  window_.resize(static_cast<size_t>(options_.seq_len) + 1);
  ring_.resize(static_cast<size_t>(options_.prefetch_steps) + 1);
  for (StepBatch& step : ring_) {
    for (int64_t m = 0; m < options_.global / options_.micro; ++m) step.micro.push_back(make_batch(options_.micro, options_.seq_len));
    step.sample_ids.resize(static_cast<size_t>(options_.global));
  }
  thread_ = std::thread([this] { work(); });
}

StepLoader::~StepLoader() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void StepLoader::fill(StepBatch& batch, int64_t first_sample) {
  batch.first_sample = first_sample;
  batch.valid_tokens = 0;
  for (size_t m = 0; m < batch.micro.size(); ++m) {
    MicroBatch& micro = batch.micro[m];
    micro.valid_tokens = 0;
    for (int64_t row = 0; row < options_.micro; ++row) {
      const int64_t in_step = static_cast<int64_t>(m) * options_.micro + row, number = first_sample + in_step;
      dataset_.sample(number, window_.data());
      if (int64_t bad = first_bad_token(window_, options_.vocab_size); bad >= 0) {
        const int32_t id = window_[static_cast<size_t>(bad)];
        for (const auto& segment : dataset_.segments(number)) {
          if (bad < segment.count) dataset_.set().throw_bad_token(dataset_.set().start(segment.sequence) + segment.offset + bad, id,
              options_.vocab_size);
          bad -= segment.count;
        }
      }
      batch.sample_ids[static_cast<size_t>(in_step)] = dataset_.sample_id(number);
      fill_row(micro, row, window_.data(), options_);
    }
    batch.valid_tokens += micro.valid_tokens;
  }
}

void StepLoader::work() {
  const auto size = static_cast<int64_t>(ring_.size());
  try {
    for (int64_t step = 0;; ++step) {
      {
        std::unique_lock lock(mutex_);
        // Step k takes the place of step k - size, which must have been handed out and let go.
        changed_.wait(lock, [&] { return stop_ || step - size < (held_ >= 0 ? held_ : consumed_); });
        if (stop_) return;
      }
      fill(ring_[static_cast<size_t>(step % size)], options_.first_sample + step * options_.global);
      {
        const std::lock_guard lock(mutex_);
        produced_ = step + 1;
      }
      changed_.notify_all();
    }
  } catch (...) {
    {
      const std::lock_guard lock(mutex_);
      failure_ = std::current_exception();
    }
    changed_.notify_all();
  }
}

const StepBatch& StepLoader::next() {
  std::unique_lock lock(mutex_);
  held_ = -1;
  changed_.notify_all();
  changed_.wait(lock, [&] { return produced_ > consumed_ || failure_; });
  if (produced_ == consumed_) std::rethrow_exception(failure_);
  held_ = consumed_++;
  return ring_[static_cast<size_t>(held_ % static_cast<int64_t>(ring_.size()))];
}

std::vector<MicroBatch> fixed_batches(const GptDataset& dataset, int64_t samples, const LoaderOptions& options) {
  check_options(dataset, options);
  if (samples < 1) throw Error(ExitCode::config, fmt::format("a validation set of {} samples", samples), "eval.samples", "give at least 1");
  const int64_t count = std::min(samples, dataset.file_order_size());
  std::vector<MicroBatch> batches;
  std::vector<int32_t> window(static_cast<size_t>(options.seq_len) + 1);
  for (int64_t first = 0; first < count; first += options.micro) {
    batches.push_back(make_batch(std::min(options.micro, count - first), options.seq_len));
    for (int64_t row = 0; row < batches.back().samples; ++row) {
      dataset.file_order_sample(first + row, window.data());
      const int64_t bad = first_bad_token(window, options.vocab_size);
      if (bad >= 0) dataset.set().throw_bad_token(dataset.file_order_position(first + row) + bad, window[static_cast<size_t>(bad)],
          options.vocab_size);
      fill_row(batches.back(), row, window.data(), options);
    }
  }
  return batches;
}

}  // namespace octet::data
