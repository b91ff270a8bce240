// NumPy files behind two 16-bit sizes that cut the input into three: the first as an array, the first two as the cache of a blend of three sources, all
// three as a sample cache of a small token file.
#include <cstring>
#include <set>

#include "data/sample_cache.h"
#include "fuzz.h"

using namespace octet;
using namespace octet::data;

namespace {

// 13 tokens in documents of 3, 1, 4 and 5.
TokenSource tokens(const fuzz::Scratch& scratch) {
  scratch.write("tokens", std::string_view("\1\0\1\0\7\0\7\0\1\0\1\0\1\0\7\0\1\0\1\0\1\0\1\0\7\0", 26));
  return TokenSource::open(scratch.path("tokens").string(), TokenFormat::raw_u16, 7);
}

ByteReader memory(std::string_view bytes, const char* name) { return ByteReader::of({reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size()}, name); }

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fuzz::Scratch scratch;
  static const TokenSource set = tokens(scratch);
  if (size < 4) return 0;
  uint16_t cuts[2];
  std::memcpy(cuts, data, 4);
  std::string_view rest = fuzz::text_of(data + 4, size - 4);
  std::string_view parts[3];
  for (int i = 0; i < 3; ++i) {
    parts[i] = rest.substr(0, i < 2 ? cuts[i] : rest.size());
    rest.remove_prefix(parts[i].size());
  }
  const ByteReader a = memory(parts[0], "a"), b = memory(parts[1], "b"), c = memory(parts[2], "c");
  fuzz::accepts({ExitCode::data}, [&] {
    const NpyHeader header = parse_npy_header(a);
    int64_t values = 0;
    each_npy_value(a, header, [&](int64_t, int64_t) { ++values; });
    fuzz::require(values == header.elements, "all values are visited");
  });
  fuzz::accepts({ExitCode::data}, [&] {
    for (const int16_t source : parse_blend_cache(a, b, 3)) fuzz::require(source >= 0 && source < 3, "sources are there");
  });
  for (const bool partial : {false, true}) {
    fuzz::accepts({ExitCode::data}, [&] {
      const SampleIndices cache = parse_sample_cache(a, b, c, set, 0, set.sequences(), 4, partial);
      const std::set<uint32_t> windows(cache.shuffle.begin(), cache.shuffle.end());
      fuzz::require(windows.size() == cache.shuffle.size() && cache.starts.size() == windows.size() + 1, "every window is there once");
      for (const int32_t document : cache.documents) fuzz::require(document >= 0 && document < set.sequences(), "documents are there");
    });
  }
  return 0;
}
