// Small texts with a syntax of their own, the first byte tells which: --dump, splits, globs, checkpoint names, counts with units.
#include "checkpoint/store.h"
#include "config/config_io.h"
#include "config/units.h"
#include "data/gpt_dataset.h"
#include "fuzz.h"
#include "train/dump_file.h"

using namespace octet;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string text(fuzz::text_of(data + 1, size - 1));
  switch (data[0] % 5) {
    case 0:
      fuzz::accepts({ExitCode::config}, [&] {
        const auto request = parse_dump_request(text);
        fuzz::require(!request || (request->step >= 1 && !request->modules.empty()), "a dump has a step and modules");
      });
      break;
    case 1: {
      fuzz::accepts({ExitCode::config}, [&] { parse_split(text); });
      fuzz::accepts({ExitCode::config}, [&] {
        for (const int64_t n : {int64_t{0}, int64_t{1}, int64_t{1000003}}) {
          const auto b = data::split_bounds(text, n);
          fuzz::require(b[0] == 0 && b[0] <= b[1] && b[1] <= b[2] && b[2] <= b[3] && b[3] <= n, "parts are in order");
        }
      });
      break;
    }
    case 2: {
      const size_t line = std::min(text.find('\n'), text.size());
      const std::string pattern = text.substr(0, line), path = line < text.size() ? text.substr(line + 1) : "";
      glob_match(pattern, path);
      if (path.find_first_of("*?[]\\") == std::string::npos) fuzz::require(glob_match("*", path) && glob_match(path, path), "a path matches itself and a star");
      break;
    }
    case 3: {
      const auto id = parse_step_name(text);
      fuzz::require(!id || id->step >= 0, "steps are not negative");
      break;
    }
    default: {
      const UnitCount count = parse_unit_count(text);
      fuzz::require(count.value >= 0 && (count.fault == UnitFault::none || count.value == 0), "counts are not negative");
    }
  }
  return 0;
}
