// NumPy .npy files of integers: format version 1.0, C order, little-endian. "\x93NUMPY" 1 0, u16 length of the header, the header (a Python
// dict literal with exactly descr, fortran_order and shape), then the values.
//
// Source: NumPy, numpy.lib.format.
#pragma once
#include <string>
#include <vector>

#include "data/token_layout.h"

namespace octet::data {

struct NpyHeader {
  std::string descr;             // one of <i2 <i4 <i8 <u4
  std::vector<int64_t> shape;
  uint64_t first_byte = 0;       // of the values
  int64_t elements = 1;          // product of shape
};

// Errors (ExitCode::data): anything other than the above, and a file that is not exactly as long as the header says.
NpyHeader parse_npy_header(const ByteReader& reader);

// Calls visit(i, value as int64_t) for every value.
template <class Visit>
void each_npy_value(const ByteReader& reader, const NpyHeader& header, Visit&& visit) {
  const auto widened = [&](int64_t i, auto value) { visit(i, static_cast<int64_t>(value)); };
  if (header.descr == "<i2") each_value<int16_t>(reader, header.first_byte, header.elements, widened);
  else if (header.descr == "<i4") each_value<int32_t>(reader, header.first_byte, header.elements, widened);
  else if (header.descr == "<u4") each_value<uint32_t>(reader, header.first_byte, header.elements, widened);
  else each_value<int64_t>(reader, header.first_byte, header.elements, widened);
}

}  // namespace octet::data
