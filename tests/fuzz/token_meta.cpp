// PREFIX.meta.json of token files and PREFIX.resume.json of a build: what is accepted is written and read again.
#include "data/build_journal.h"
#include "data/token_meta.h"
#include "fuzz.h"

using namespace octet;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text = fuzz::text_of(data, size);
  fuzz::accepts({ExitCode::data}, [&] {
    const std::string once = data::to_json(data::parse_token_meta(text, "x.meta.json"));
    fuzz::require(data::to_json(data::parse_token_meta(once, "again")) == once, "meta data round-trips");
  });
  fuzz::accepts({ExitCode::data}, [&] {
    const std::string once = data::to_json(data::parse_build_progress(text, "x.resume.json"));
    fuzz::require(data::to_json(data::parse_build_progress(once, "again")) == once, "a journal round-trips");
  });
  return 0;
}
