// An event file. First byte even: the rest as it is; odd: payloads, each behind a byte that tells its length, framed here with right checksums.
#include "fuzz.h"
#include "report/crc32c.h"
#include "report/tensorboard_reader.h"

using namespace octet;

namespace {

void add_word(std::string& to, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) to += static_cast<char>(value >> 8 * i & 0xFF);
}

std::string framed(std::string_view payloads) {
  std::string out;
  while (!payloads.empty()) {
    const std::string_view payload = payloads.substr(1, static_cast<uint8_t>(payloads[0]));
    payloads.remove_prefix(1 + payload.size());
    std::string length;
    add_word(length, payload.size(), 8);
    out += length;
    add_word(out, masked_crc32c(length), 4);
    out += payload;
    add_word(out, masked_crc32c(payload), 4);
  }
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fuzz::Scratch scratch;
  if (size == 0) return 0;
  const std::string_view rest = fuzz::text_of(data + 1, size - 1);
  const std::string file = data[0] & 1 ? framed(rest) : std::string(rest);
  const bool good = fuzz::accepts({ExitCode::data}, [&] {
    const report::TensorboardScalars read = report::parse_tensorboard(file, "events");
    for (const auto& scalar : read.scalars) fuzz::require(scalar.step >= 0, "steps are not negative");
    fuzz::require(!(data[0] & 1) || !read.torn, "whole records are not torn");
  });
  if (!good) return 0;
  scratch.write("events.out.tfevents.1", file);
  fuzz::accepts({ExitCode::data}, [&] {
    report::RunMetrics run;
    if (data[0] & 2) run.tokens_per_step = 1024;
    report::read_tensorboard(scratch.path("."), run);
    for (size_t i = 1; i < run.train.size(); ++i) fuzz::require(run.train[i].tokens > run.train[i - 1].tokens, "tokens increase");
  });
  return 0;
}
