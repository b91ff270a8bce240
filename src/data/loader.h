// Batches of an optimizer step, read ahead by one background thread. The batches are a pure function of (dataset, options, sample
// number): nothing but the number of consumed samples need be saved to go on exactly where a run stopped.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "data/gpt_dataset.h"

namespace octet::data {

// One forward pass. All arrays are [samples * seq_len], row-major by sample.
struct MicroBatch {
  std::vector<int32_t> tokens;
  std::vector<int32_t> labels;          // the next token; -1: no loss at this position
  std::vector<int32_t> positions;       // 0..S-1, restarting behind an EOD with reset_position_ids
  std::vector<int32_t> document_start;  // position in the sample where this token's document begins; all 0 without document_mask
  int64_t samples = 0, seq_len = 0;
  int64_t valid_tokens = 0;             // labels other than -1
};

struct StepBatch {
  std::vector<MicroBatch> micro;        // [global / micro]
  int64_t valid_tokens = 0;             // over all of them
  int64_t first_sample = 0;             // number of the first sample; the step holds [first_sample, first_sample + global)
  std::vector<int64_t> sample_ids;      // [global], GptDataset::sample_id
};

struct LoaderOptions {
  int64_t micro = 1, global = 1;        // samples; global a multiple of micro
  int64_t seq_len = 0;                  // as the dataset's
  int64_t vocab_size = 0;               // ids must lie in [0, vocab_size)
  int64_t eod_id = 256;                 // end of document; the EOD token belongs to the document it ends
  bool eod_mask_loss = false;           // no loss where the input token is EOD
  bool document_mask = false;           // fill document_start
  bool reset_position_ids = false;      // restart positions behind an EOD
  int64_t prefetch_steps = 2;           // steps read ahead of the one in use; 0 reads when asked
  int64_t first_sample = 0;             // samples consumed so far
};

// Fills labels, positions, document_start and valid_tokens of row `row` from its S+1 tokens.
void fill_row(MicroBatch& batch, int64_t row, const int32_t* window, const LoaderOptions& options);

class StepLoader {
 public:
  // `dataset` must outlive the loader and is used by no one else meanwhile.
  StepLoader(GptDataset& dataset, const LoaderOptions& options);
  ~StepLoader();
  StepLoader(const StepLoader&) = delete;
  StepLoader& operator=(const StepLoader&) = delete;

  // The next step's batch, valid until the following call. An exception of the reading thread (ExitCode::data: a token id outside the
  // vocabulary, an unreadable file) is rethrown here, in its turn: earlier batches are delivered first.
  const StepBatch& next();

 private:
  void work();
  void fill(StepBatch& batch, int64_t first_sample);

  GptDataset& dataset_;
  LoaderOptions options_;
  std::vector<StepBatch> ring_;   // prefetch_steps + 1, allocated once
  std::vector<int32_t> window_;   // [S + 1], of the reading thread
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t produced_ = 0, consumed_ = 0;  // steps; ring_[k % size] is filled for consumed_ <= k < produced_
  int64_t held_ = -1;                    // step the caller still holds
  std::exception_ptr failure_;
  bool stop_ = false;
  std::thread thread_;
};

// A fixed validation set: the first `samples` windows of the split in file order (GptDataset::file_order_sample), in micro-batches of
// options.micro, the last one smaller when they do not divide. A smaller split gives all its windows.
// Errors: ExitCode::data for a token id outside the vocabulary, ExitCode::config for samples < 1.
std::vector<MicroBatch> fixed_batches(const GptDataset& dataset, int64_t samples, const LoaderOptions& options);

}  // namespace octet::data
