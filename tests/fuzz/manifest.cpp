// A checkpoint's manifest. Its checksum is set right first, so that what lies behind it is reached.
#include <fmt/format.h>

#include "checkpoint/manifest.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/store.h"
#include "fuzz.h"

using namespace octet;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text = fuzz::text_of(data, size);
  fuzz::accepts({ExitCode::checkpoint}, [&] { parse_manifest(text, "input"); });
  nlohmann::json content = nlohmann::json::parse(text, nullptr, false);
  if (!content.is_object()) return 0;
  content.erase("checksum");
  std::string plain;
  try {
    plain = content.dump();
    content["checksum"] = fmt::format("{:016x}", xxh64(plain.data(), plain.size()));
    plain = content.dump();
  } catch (const nlohmann::json::exception&) {
    return 0;   // not UTF-8
  }
  Manifest m;
  if (!fuzz::accepts({ExitCode::checkpoint}, [&] { m = parse_manifest(plain, "input"); })) return 0;
  for (const auto& [group, tensors] : m.groups) {
    for (const auto& [name, t] : tensors) fuzz::require(tiling_fault(t.shape, t.boxes).empty(), "boxes tile their tensor");
  }
  fuzz::require(to_text(parse_manifest(to_text(m), "again")) == to_text(m), "a manifest survives the round trip");
  return 0;
}
