// Words of a command line (one a line) against the flags of a subcommand, and names that are nearly right.
#include "app/cli.h"
#include "config/nearest.h"
#include "fuzz.h"

using namespace octet;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::vector<cli::Flag> flags = [] {
    std::vector<cli::Flag> out = {{"--config", FlagTakes::values}, {"--help", FlagTakes::optional_word}, {"--dry-run", FlagTakes::nothing}};
    for (const Field<RunConfig>& f : run_fields()) {
      if (!f.flag.name.empty()) out.push_back({f.flag.name, f.flag.takes});
    }
    return out;
  }();
  std::vector<std::string> words = {"train"};
  const std::string_view text = fuzz::text_of(data, size);
  for (size_t begin = 0; begin <= text.size() && words.size() < 64;) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    words.emplace_back(std::string(text.substr(begin, end - begin)).c_str());   // cut at a NUL, as the system does
    begin = end + 1;
  }
  std::vector<char*> argv;
  for (std::string& w : words) argv.push_back(w.data());
  argv.push_back(nullptr);
  std::vector<cli::Given> given;
  if (!fuzz::accepts({ExitCode::usage}, [&] { given = cli::split_flags(static_cast<int>(words.size()), argv.data(), flags); })) return 0;
  for (const cli::Given& g : given) fuzz::require(g.name.rfind("--", 0) == 0, "what was given has a flag's name");
  return 0;
}
