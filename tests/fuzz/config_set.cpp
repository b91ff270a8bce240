// Lines of --set PATH=VALUE over a small valid config, then the typed config.
#include "config/config_io.h"
#include "fuzz.h"

using namespace octet;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const nlohmann::json base = nlohmann::json::parse(R"({
    "model": {"vocab_size": 257, "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4, "num_attention_heads": 4},
    "data": {"train": [{"path": "data/text"}], "seq_len": 256}, "batch": {"micro": 4, "global": 8}, "optim": {"lr": 0.0005}, "run": {"steps": 300}})");
  ConfigTree tree{base, {}};
  const std::string_view text = fuzz::text_of(data, size);
  for (size_t begin = 0, lines = 0; begin <= text.size() && lines < 8; ++lines) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    fuzz::accepts({ExitCode::config, ExitCode::usage}, [&] { tree.set_expression(std::string(text.substr(begin, end - begin))); });
    begin = end + 1;
  }
  RunConfig config;
  if (!fuzz::accepts({ExitCode::config}, [&] { config = from_json(tree.values, tree.origins); })) return 0;
  fuzz::accepts({ExitCode::config}, [&] { validate(config); });
  return 0;
}
