// Batches of an optimizer step, read ahead by background threads. The batches are a pure function of (datasets, order, options, sample
// number): nothing but the number of consumed samples need be saved to go on exactly where a run stopped.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "data/blend.h"
#include "data/gpt_dataset.h"

namespace octet::data {

// One forward pass. All arrays are [samples * seq_len], row-major by sample.
struct MicroBatch {
  std::vector<int32_t> tokens;
  std::vector<int32_t> labels;          // the next token; -1: no loss at this position (padding, LoaderOptions::pad_id, eod_mask_loss)
  std::vector<int32_t> positions;       // 0..S-1, restarting behind an EOD with reset_position_ids
  std::vector<int32_t> document_start;  // position in the sample where this token's document begins; all 0 without document_mask
  int64_t samples = 0, seq_len = 0;
  int64_t valid_tokens = 0;             // labels other than -1
};

struct StepBatch {
  std::vector<MicroBatch> micro;        // [global / micro / ranks]: this rank's
  int64_t valid_tokens = 0;             // over them
  int64_t first_sample = 0;             // number of the first sample; the step holds [first_sample, first_sample + global)
  // Of all ranks, in the order of the samples.
  std::vector<int64_t> sample_ids;      // [global], GptDataset::sample_id
  std::vector<int64_t> sample_sources;  // [global], number of the source
  std::vector<int64_t> source_samples;  // samples of each source in this step
};

// FNV-1a over the step's (source, id) pairs: equal in two runs that read the same samples in the same order.
uint64_t sample_hash(const StepBatch& batch);

struct LoaderOptions {
  int64_t micro = 1, global = 1;        // samples; global a multiple of micro x ranks
  int64_t seq_len = 0;                  // as the dataset's
  int64_t vocab_size = 0;               // ids must lie in [0, vocab_size)
  int64_t eod_id = 256;                 // end of document; the EOD token belongs to the document it ends
  bool eod_mask_loss = false;           // no loss where the input token is EOD
  bool document_mask = false;           // fill document_start
  bool reset_position_ids = false;      // restart positions behind an EOD
  std::optional<int32_t> pad_id;        // no loss where the target is this id; padding is written as it (absent: as 0)
  int64_t prefetch_steps = 2;           // steps read ahead of the one in use; 0 reads when asked
  int64_t readers = 1;                  // threads, each reading a micro-batch at a time
  int64_t first_sample = 0;             // samples consumed so far, by all ranks
  int64_t rank = 0, ranks = 1;          // data-parallel: they take a step's micro-batches in turn
};

// Fills row `row` from its window: `have` tokens of S+1 (-1: all). What is missing becomes padding without loss.
void fill_row(MicroBatch& batch, int64_t row, const int32_t* window, const LoaderOptions& options, int64_t have = -1);

// Reads a sample's window in place of GptDataset::sample, from several threads (tests make it slow).
using SampleReader = std::function<int64_t(const GptDataset& dataset, int64_t sample, int32_t* tokens)>;

class StepLoader {
 public:
  // The sources of `order`, which is at its start. They must outlive the loader.
  StepLoader(std::vector<const GptDataset*> sources, BlendOrder order, const LoaderOptions& options, SampleReader reader = {});
  // One source.
  StepLoader(const GptDataset& dataset, const LoaderOptions& options, SampleReader reader = {});
  ~StepLoader();
  StepLoader(const StepLoader&) = delete;
  StepLoader& operator=(const StepLoader&) = delete;

  // The next step's batch, valid until the following call. An exception of a reading thread (ExitCode::data: a token id outside the
  // vocabulary, an unreadable file) is rethrown here, in its turn: earlier batches are delivered first.
  const StepBatch& next();

 private:
  struct Slot {
    StepBatch batch;
    int64_t step = -1;                 // that it holds or is being filled with
    int64_t missing = 0;               // micro-batches not filled yet
    int64_t failed_micro = -1;         // the first that could not be
    std::exception_ptr failure;
  };
  struct Task {
    int64_t step = 0, micro = 0;         // micro: of this rank's, from 0
    std::vector<BlendPick> picks;      // [options.micro]
  };

  void work();
  bool claim(Task& task);              // false: the loader ends
  int64_t own_micro_batches() const { return options_.global / options_.micro / options_.ranks; }
  void plan(Slot& slot, Task& task);
  void fill(StepBatch& batch, const Task& task, std::vector<int32_t>& window) const;
  Slot& slot_of(int64_t step) { return ring_[static_cast<size_t>(step % static_cast<int64_t>(ring_.size()))]; }

  std::vector<const GptDataset*> sources_;
  BlendOrder order_;
  LoaderOptions options_;
  SampleReader reader_;
  std::vector<Slot> ring_;             // prefetch_steps + 1, allocated once
  std::mutex mutex_;                   // guards all that follows, the slots' states and order_
  std::condition_variable changed_;
  int64_t next_task_ = 0;              // step * own micro-batches + micro-batch
  int64_t consumed_ = 0;               // steps handed out
  int64_t held_ = -1;                  // step the caller still holds
  std::exception_ptr order_failure_;   // the order has no further sample
  int64_t order_failed_step_ = -1;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

// A window in file order of one source.
struct FileWindow {
  const GptDataset* dataset;
  int64_t window;
};

// The first `samples` windows of a validation set of several splits: which split each comes from is decided as in a blend (BlendOrder::once
// with these weights, or the splits' sizes without), and within a split they follow the file. Fewer when all splits are used up.
std::vector<FileWindow> blended_windows(const std::vector<const GptDataset*>& splits, const std::vector<double>& weights, int64_t samples);

// These windows in micro-batches of options.micro, the last one smaller when they do not divide.
// Errors: ExitCode::data for a token id outside the vocabulary.
std::vector<MicroBatch> window_batches(const std::vector<FileWindow>& windows, const LoaderOptions& options);

// A fixed validation set: the first `samples` windows of the split in file order (GptDataset::file_order_sample), in micro-batches of
// options.micro as window_batches. A smaller split gives all its windows.
// Errors: as window_batches, and ExitCode::config for samples < 1.
std::vector<MicroBatch> fixed_batches(const GptDataset& dataset, int64_t samples, const LoaderOptions& options);

}  // namespace octet::data
