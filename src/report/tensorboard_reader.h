// Reads the scalars of a training run from TensorBoard event files: ours, Megatron-LM's, torchtitan's, nanotron's.
//
// A file is a sequence of records: length (u64, little endian), masked CRC-32C of those 8 bytes, payload, masked CRC-32C of the payload. A
// payload is a protocol-buffer Event {1 wall_time double, 2 step int64, 5 Summary {1 Value {1 tag, 2 simple_value float, 8 TensorProto
// {1 dtype, 4 tensor_content, 5 float_val, 6 double_val}}}, 7 SessionLog {1 status}}. Source: the .proto files of TensorFlow and
// TensorBoard (event.proto, summary.proto, tensor.proto); CRC-32C: RFC 3720, appendix B.4.
#pragma once
#include <cstdint>
#include <filesystem>
#include <istream>
#include <string>
#include <string_view>
#include <vector>

#include "report/run_metrics.h"

namespace octet::report {

enum class ScalarRole { loss, valid_loss, grad_norm, lr, tokens_per_s, step_ms, tokens };

struct TensorboardScalar {
  int64_t step = 0;
  ScalarRole role = ScalarRole::loss;
  double value = 0;  // may be NaN or infinite
};

struct TensorboardScalars {
  // In file order. A session that starts anew (SessionLog START) is a scalar-less entry of `starts`: (index into scalars, step).
  std::vector<TensorboardScalar> scalars;
  std::vector<std::pair<size_t, int64_t>> starts;
  bool torn = false;  // the last record is incomplete: the writer was stopped, or still runs
};

// The scalars with the tags below; other tags, images, histograms and texts are passed over. `where` names the file in errors. Memory
// is bounded by the file's own size. Throws Error(data) for a checksum that does not match, a malformed message or a step outside [0, 2^53].
TensorboardScalars parse_tensorboard(std::istream& file, const std::string& where);
TensorboardScalars parse_tensorboard(std::string_view bytes, const std::string& where);

// Whether a directory holds a file with "tfevents" in its name.
bool is_tensorboard_folder(const std::filesystem::path& folder);

// Reads all event files of a folder, in the order of their names, into train and valid of `run`. Where a later record's step goes back, the run
// was resumed: the later record counts. Without a tag for tokens they are steps x run.tokens_per_step, or, where that is unknown too,
// the steps themselves, with a note. Throws Error(data) for damaged files or when no known tag of a loss is in them.
void read_tensorboard(const std::filesystem::path& folder, RunMetrics& run);

}  // namespace octet::report
