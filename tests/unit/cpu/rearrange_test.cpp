// Operators that move elements and change none.
#include "ops/reduce.h"

#include "support.h"

using namespace cpu_test;

namespace {

// Bytes and floats, of matrices inside wider ones; what lies between the rows stays.
TEST(rearrange, transpose_moves_every_element) {
  for (const Dtype dtype : {Dtype::e4m3, Dtype::f32}) {
    for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{1, 1}, {3, 130}, {200, 65}, {128, 128}}) {
      const int64_t width = static_cast<int64_t>(size_bytes(dtype));
      Machine m(GemmMath::fixed, 3);
      Buffer from(dtype, {rows, cols + 3}), to(dtype, {cols, rows + 5}, 0xA5), want = to;
      auto* bytes = static_cast<uint8_t*>(from.tensor().data);
      for (size_t i = 0; i < from.bytes().size(); ++i) bytes[i] = static_cast<uint8_t>(i * 37 + i / 251);
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < cols; ++c) std::memcpy(static_cast<uint8_t*>(want.tensor().data) + (c * (rows + 5) + 2 + r) * width, bytes + (r * (cols + 3) + 1 + c) * width, static_cast<size_t>(width));
      }
      ops::transpose(m.ctx, from.columns(1, cols), to.columns(2, rows));
      EXPECT_EQ(to.bytes(), want.bytes()) << name(dtype) << " " << rows << "x" << cols;
    }
  }
}

TEST(rearrange, parts_become_columns) {
  for (const Dtype dtype : {Dtype::e5m2, Dtype::f32}) {
    for (const auto& [parts, rows, cols] : {std::tuple<int64_t, int64_t, int64_t>{1, 3, 4}, {2, 100, 32}, {4, 7, 3}}) {
      const int64_t width = static_cast<int64_t>(size_bytes(dtype)), ld = cols + 1, whole_ld = parts * cols + 4;
      Machine m(GemmMath::fixed, 3);
      Buffer from(dtype, {parts * rows, ld}), whole(dtype, {rows, whole_ld}, 0xA5), want = whole;
      auto* bytes = static_cast<uint8_t*>(from.tensor().data);
      for (size_t i = 0; i < from.bytes().size(); ++i) bytes[i] = static_cast<uint8_t>(i * 41 + i / 253);
      for (int64_t p = 0; p < parts; ++p) {
        for (int64_t r = 0; r < rows; ++r) std::memcpy(static_cast<uint8_t*>(want.tensor().data) + (r * whole_ld + p * cols) * width, bytes + (p * rows + r) * ld * width, static_cast<size_t>(cols * width));
      }
      ops::join_columns(m.ctx, from.columns(0, cols), whole.columns(0, parts * cols));
      EXPECT_EQ(whole.bytes(), want.bytes()) << name(dtype) << " " << parts << " parts of " << rows << "x" << cols;
    }
  }
  Machine m(GemmMath::fixed);
  Buffer from(Dtype::u8, {4, 3}), whole(Dtype::u8, {3, 4});
  EXPECT_THROW(ops::join_columns(m.ctx, from.tensor(), whole.tensor()), Error);   // columns of 3 do not make 4
}

}  // namespace
