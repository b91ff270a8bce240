#include "cpu/gemm_exact.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "numerics/accumulate.h"
#include "numerics/formats.h"

namespace octet::cpu {
namespace {

constexpr int64_t promotion_interval = 128;  // four 32-deep instructions (DeepSeek-V3, section 3.3.2)

// A logical row of an operand: decoded values and the scale of each element's block.
struct Row {
  std::vector<float> value, scale;
};

Row decode_row(const Operand& o, int64_t row) {
  Row out;
  const int64_t k = o.k();
  out.value.resize(static_cast<size_t>(k));
  out.scale.resize(static_cast<size_t>(k));
  const int64_t block_rows = o.block_rows ? o.block_rows : std::max<int64_t>(o.data.rows, 1), block_cols = o.block_cols ? o.block_cols : std::max<int64_t>(o.data.cols, 1);
  for (int64_t i = 0; i < k; ++i) {
    const int64_t r = o.transposed ? i : row, c = o.transposed ? row : i;
    out.value[static_cast<size_t>(i)] = decode(o.data.dtype, o.data.row<uint8_t>(r)[c]);
    out.scale[static_cast<size_t>(i)] = o.scale_inv.as<float>()[r / block_rows * o.scale_inv.cols() + c / block_cols];
  }
  return out;
}

float product(const Row& a, Dtype fa, const Row& b, Dtype fb, Accumulate accumulate, float sum) {
  const size_t k = a.value.size();
  for (size_t begin = 0; begin < k;) {
    size_t end = begin + 1;
    const auto same_scales = [&](size_t i) { return a.scale[i] == a.scale[begin] && b.scale[i] == b.scale[begin]; };
    const auto promotes = [&](size_t i) { return accumulate == Accumulate::accurate && i % promotion_interval == 0; };
    while (end < k && same_scales(end) && !promotes(end)) ++end;
    const float chain = tensor_core_chain(a.value.data() + begin, fa, b.value.data() + begin, fb, static_cast<int64_t>(end - begin), 0.0f);
    sum = std::fma(chain, a.scale[begin] * b.scale[begin], sum);
    begin = end;
  }
  return sum;
}

}  // namespace

void exact_tile(std::span<const GemmTerm> terms, Accumulate accumulate, int64_t m0, int64_t m1, int64_t n0, int64_t n1, float* c, int64_t ldc, bool add) {
  for (const GemmTerm& t : terms) {
    std::vector<Row> columns;
    for (int64_t j = n0; j < n1; ++j) columns.push_back(decode_row(t.b, j));
    for (int64_t i = m0; i < m1; ++i) {
      const Row row = decode_row(t.a, i);
      for (int64_t j = n0; j < n1; ++j) {
        float& out = c[(i - m0) * ldc + (j - n0)];
        out = product(row, t.a.data.dtype, columns[static_cast<size_t>(j - n0)], t.b.data.dtype, accumulate, add ? out : 0.0f);
      }
    }
    add = true;
  }
}

}  // namespace octet::cpu
