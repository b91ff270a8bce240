// Attention of one sample and one KV head a task. Query rows are handled in tiles; a tile's scores cover only the keys it can see.
#include "ops/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/blas.h"
#include "cpu/cpu_ops.h"
#include "cpu/scratch.h"
#include "cpu/simd.h"

namespace octet::cpu {
namespace {

constexpr int64_t query_tile = 64;

// Rows [row0, row0 + n) and one head's columns of a [T, heads * d] matrix, as contiguous FP32 [n, d].
void load_head(const MatrixView& m, int64_t row0, int64_t n, int64_t column, int64_t d, float* out) {
  const MatrixView head = m.columns(column, d);
  for (int64_t r = 0; r < n; ++r) {
    const float* src = read_row(head, row0 + r, out + r * d);
    if (src != out + r * d) std::copy_n(src, d, out + r * d);
  }
}

void store_head(const MatrixView& m, int64_t row0, int64_t n, int64_t column, int64_t d, const float* x) {
  const MatrixView head = m.columns(column, d);
  for (int64_t r = 0; r < n; ++r) write_row(head, row0 + r, x + r * d);
}

struct Sample {
  int64_t row0;              // first row of the sample
  const int32_t* document;   // document_start of the sample, or null
  int64_t first_key(int64_t query) const { return document ? document[query] : 0; }
};

Sample sample_at(const Tensor& document_start, int64_t seq_len, int64_t index) {
  return {index * seq_len, document_start ? document_start.as<int32_t>() + index * seq_len : nullptr};
}

// Turns scores [n, keys] of queries q0.. against keys k0.. into exp(scale * s - shift_i), zero where the key is not visible. With shift null the shift
// is the row's maximum, written to row_max, and the row's sum is written to row_sum.
void masked_exp(float* scores, int64_t n, int64_t keys, int64_t q0, int64_t k0, const Sample& s, float scale, const float* shift, float* row_max, float* row_sum) {
  for (int64_t i = 0; i < n; ++i) {
    float* row = scores + i * keys;
    const int64_t first = s.first_key(q0 + i) - k0, last = q0 + i - k0;  // visible: [first, last]
    std::fill(row, row + first, 0.0f);
    std::fill(row + last + 1, row + keys, 0.0f);
    const float m = shift ? shift[i] : lane_max(row + first, last + 1 - first, -std::numeric_limits<float>::infinity()) * scale;
    for (int64_t j = first; j <= last; ++j) row[j] = fast_exp(row[j] * scale - m);
    if (!shift) {
      row_max[i] = m;
      row_sum[i] = lane_sum(row + first, last + 1 - first);
    }
  }
}

void attend(Ctx& ctx, const Tensor& qkv, const Tensor& document_start, int64_t seq_len, const HeadGeometry& g, const Tensor& out, const Tensor& lse) {
  Arena::Scope scope(ctx.scratch());
  const int64_t d = g.head_dim, group = g.heads / g.kv_heads, samples = qkv.rows() / seq_len;
  const WorkerScratch scratch(ctx, 2 * seq_len * d + 2 * query_tile * d + query_tile * seq_len + 2 * query_tile);
  if (ctx.planning()) return;
  const float scale = 1.0f / std::sqrt(static_cast<float>(d));
  const GemmMath math = ctx.gemm_math();
  ctx.pool().run(samples * g.kv_heads, [&](int64_t task, int worker) {
    float *k = scratch.of(worker), *v = k + seq_len * d, *q = v + seq_len * d, *o = q + query_tile * d, *p = o + query_tile * d;
    float *row_max = p + query_tile * seq_len, *row_sum = row_max + query_tile;
    const int64_t b = task / g.kv_heads, kv = task % g.kv_heads;
    const Sample s = sample_at(document_start, seq_len, b);
    load_head(qkv, s.row0, seq_len, (g.heads + kv) * d, d, k);
    load_head(qkv, s.row0, seq_len, (g.heads + g.kv_heads + kv) * d, d, v);
    for (int64_t h = kv * group; h < (kv + 1) * group; ++h) {
      float* lse_row = lse.as<float>() + (b * g.heads + h) * seq_len;
      for (int64_t q0 = 0; q0 < seq_len; q0 += query_tile) {
        const int64_t n = std::min(query_tile, seq_len - q0), k0 = s.first_key(q0), keys = q0 + n - k0;
        load_head(qkv, s.row0 + q0, n, h * d, d, q);
        matmul(math, n, keys, d, {q, d}, {k + k0 * d, d, true}, false, p, keys);
        masked_exp(p, n, keys, q0, k0, s, scale, nullptr, row_max, row_sum);
        matmul(math, n, d, keys, {p, keys}, {v + k0 * d, d}, false, o, d);
        for (int64_t i = 0; i < n; ++i) {
          const float inverse = 1.0f / row_sum[i];
          for (int64_t c = 0; c < d; ++c) o[i * d + c] *= inverse;
          lse_row[q0 + i] = row_max[i] + std::log(row_sum[i]);
        }
        store_head(out, s.row0 + q0, n, h * d, d, o);
      }
    }
  });
}

}  // namespace

void attention(Ctx& ctx, const Tensor& qkv, const Tensor& document_start, int64_t seq_len, const HeadGeometry& g, const Tensor& out, const Tensor& lse,
               const QuantizedOut& images) {
  attend(ctx, qkv, document_start, seq_len, g, out, lse);
  if (images.wanted()) quantize(ctx, out, images);
}

void attention_backward(Ctx& ctx, const Tensor& d_out, const Tensor& qkv, const Tensor& out, const Tensor& lse, const Tensor& document_start, int64_t seq_len,
                        const HeadGeometry& g, const Tensor& d_qkv) {
  Arena::Scope scope(ctx.scratch());
  const int64_t d = g.head_dim, group = g.heads / g.kv_heads, samples = qkv.rows() / seq_len;
  const WorkerScratch scratch(ctx, 4 * seq_len * d + 4 * query_tile * d + 2 * query_tile * seq_len);
  if (ctx.planning()) return;
  const float scale = 1.0f / std::sqrt(static_cast<float>(d));
  const GemmMath math = ctx.gemm_math();
  ctx.pool().run(samples * g.kv_heads, [&](int64_t task, int worker) {
    float *k = scratch.of(worker), *v = k + seq_len * d, *dk = v + seq_len * d, *dv = dk + seq_len * d;
    float *q = dv + seq_len * d, *dout = q + query_tile * d, *o = dout + query_tile * d, *dq = o + query_tile * d;
    float *p = dq + query_tile * d, *dp = p + query_tile * seq_len;
    const int64_t b = task / g.kv_heads, kv = task % g.kv_heads;
    const Sample s = sample_at(document_start, seq_len, b);
    load_head(qkv, s.row0, seq_len, (g.heads + kv) * d, d, k);
    load_head(qkv, s.row0, seq_len, (g.heads + g.kv_heads + kv) * d, d, v);
    std::fill(dk, dk + 2 * seq_len * d, 0.0f);
    for (int64_t h = kv * group; h < (kv + 1) * group; ++h) {
      const float* lse_row = lse.as<float>() + (b * g.heads + h) * seq_len;
      for (int64_t q0 = 0; q0 < seq_len; q0 += query_tile) {
        const int64_t n = std::min(query_tile, seq_len - q0), k0 = s.first_key(q0), keys = q0 + n - k0;
        load_head(qkv, s.row0 + q0, n, h * d, d, q);
        load_head(d_out, s.row0 + q0, n, h * d, d, dout);
        load_head(out, s.row0 + q0, n, h * d, d, o);
        matmul(math, n, keys, d, {q, d}, {k + k0 * d, d, true}, false, p, keys);
        masked_exp(p, n, keys, q0, k0, s, scale, lse_row + q0, nullptr, nullptr);
        matmul(math, keys, d, n, {p, keys, true}, {dout, d}, true, dv + k0 * d, d);
        matmul(math, n, keys, d, {dout, d}, {v + k0 * d, d, true}, false, dp, keys);
        for (int64_t i = 0; i < n; ++i) {
          const float delta = lane_dot(dout + i * d, o + i * d, d);
          float *pi = p + i * keys, *di = dp + i * keys;
          for (int64_t j = 0; j < keys; ++j) di[j] = pi[j] * (di[j] - delta) * scale;
        }
        matmul(math, n, d, keys, {dp, keys}, {k + k0 * d, d}, false, dq, d);
        matmul(math, keys, d, n, {dp, keys, true}, {q, d}, true, dk + k0 * d, d);
        store_head(d_qkv, s.row0 + q0, n, h * d, d, dq);
      }
    }
    store_head(d_qkv, s.row0, seq_len, (g.heads + kv) * d, d, dk);
    store_head(d_qkv, s.row0, seq_len, (g.heads + g.kv_heads + kv) * d, d, dv);
  });
}

}  // namespace octet::cpu
