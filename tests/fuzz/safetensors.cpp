// The header of a safetensors file: 8 bytes of claimed file size, then the header's JSON.
#include <cstring>

#include "checkpoint/safetensors.h"
#include "fuzz.h"

using namespace octet;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  uint64_t file_bytes = 0;
  if (size < sizeof file_bytes) return 0;
  std::memcpy(&file_bytes, data, sizeof file_bytes);
  const std::string_view header = fuzz::text_of(data + sizeof file_bytes, size - sizeof file_bytes);
  SafetensorsHeader parsed;
  if (!fuzz::accepts({ExitCode::checkpoint}, [&] { parsed = parse_safetensors_header(header, file_bytes, "input"); })) return 0;
  uint64_t at = 8 + header.size();
  for (const TensorInfo& t : parsed.tensors) {
    fuzz::require(t.begin == at && t.end - t.begin == *tensor_bytes(t.shape, t.dtype), "tensors follow each other without a hole");
    at = t.end;
  }
  fuzz::require(at == file_bytes, "the last tensor ends where the file does");
  return 0;
}
