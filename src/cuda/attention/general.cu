// General family (kernels.h): a warp a query row (forward, dQ) or a key row (dK and dV), 32 keys or queries at a time, a lane each. Correct for
// every head_dim; each lane reads its own row of memory, so speed is that of L1.
#include <cmath>

#include "cuda/attention/kernels.h"
#include "cuda/kernels/reduce.cuh"
#include "cuda/launch.h"
#include "cuda/ptx/memory.h"
#include "numerics/bf16.h"
#include "numerics/exp.h"

namespace octet::cuda {
namespace {

constexpr int warps = 4, threads = 32 * warps;
constexpr float minus_infinity = -__builtin_huge_valf();

template <class T>
__device__ __forceinline__ float dot(const T* a, const T* b, int d) {
  float sum = 0.0f;
  for (int c = 0; c < d; ++c) sum = fmaf(to_float(a[c]), to_float(b[c]), sum);
  return sum;
}

// sums[c] += weight of lane l * element (first + l, c), l < n in order. Lanes share the columns.
template <class T>
__device__ __forceinline__ void add_rows(float* sums, float weight, const T* rows, int64_t ld, int n, int d, int lane) {
  for (int l = 0; l < n; ++l) {
    const float w = __shfl_sync(all_lanes, weight, l);
    for (int c = lane; c < d; c += 32) sums[c] = fmaf(w, to_float(rows[l * ld + c]), sums[c]);
  }
}

// A row's share of the grid: sample, head (of `heads`), row within the sample; false for warps beyond the last.
struct Task {
  int sample, head, row, lane;
  float* sums;                   // the warp's shared memory
  __device__ __forceinline__ Task(int heads, int seq_len, int floats_per_warp) {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int64_t n = static_cast<int64_t>(blockIdx.x) * warps + warp;
    lane = static_cast<int>(threadIdx.x) % 32;
    row = static_cast<int>(n % seq_len);
    head = static_cast<int>(n / seq_len % heads);
    sample = static_cast<int>(n / seq_len / heads);
    sums = ptx::dynamic_shared<float>() + warp * floats_per_warp;
    for (int c = lane; c < floats_per_warp; c += 32) sums[c] = 0.0f;
    __syncwarp();
  }
};

template <class T>
struct Rows {   // of one sample
  const T *q, *k, *v;
  int64_t ld, row0;
  const int32_t* document;
  __device__ __forceinline__ Rows(const AttentionShape& s, const void* qkv, int sample, int head, int kv_head) {
    const int64_t d = s.head_dim;
    ld = (s.heads + 2 * s.kv_heads) * d;
    row0 = static_cast<int64_t>(sample) * s.seq_len;
    const T* rows = static_cast<const T*>(qkv) + row0 * ld;
    q = rows + head * d;
    k = rows + (s.heads + kv_head) * d;
    v = rows + (s.heads + s.kv_heads + kv_head) * d;
    document = s.document_start ? s.document_start + row0 : nullptr;
  }
};

template <class T>
__global__ void __launch_bounds__(threads) forward_general(AttentionForward p, float scale) {
  const AttentionShape& s = p.shape;
  const Task t(s.heads, s.seq_len, s.head_dim);
  if (t.sample >= s.samples) return;
  const int d = s.head_dim;
  const Rows<T> x(s, p.qkv, t.sample, t.head, t.head / s.group());
  float largest = minus_infinity, sum = 0.0f;
  for (int k0 = x.document ? x.document[t.row] : 0; k0 <= t.row; k0 += 32) {
    const int n = min(32, t.row + 1 - k0);
    const float score = t.lane < n ? dot(x.q + t.row * x.ld, x.k + (k0 + t.lane) * x.ld, d) * scale : minus_infinity;
    const float now = fmaxf(largest, warp_max(score));
    const float weight = t.lane < n ? fast_exp(score - now) : 0.0f, correction = sum == 0.0f ? 0.0f : fast_exp(largest - now);
    sum = fmaf(sum, correction, warp_sum(weight));
    largest = now;
    for (int c = t.lane; c < d; c += 32) t.sums[c] *= correction;
    add_rows(t.sums, weight, x.v + k0 * x.ld, x.ld, n, d, t.lane);
  }
  T* out = static_cast<T*>(p.out) + ((x.row0 + t.row) * s.heads + t.head) * d;
  const float inverse = 1.0f / sum;
  for (int c = t.lane; c < d; c += 32) out[c] = from_float<T>(t.sums[c] * inverse);
  if (t.lane == 0) p.lse[(static_cast<int64_t>(t.sample) * s.heads + t.head) * s.seq_len + t.row] = largest + logf(sum);
}

template <class T>
__global__ void __launch_bounds__(threads) terms_general(AttentionBackward p, float) {
  const AttentionShape& s = p.shape;
  const Task t(s.heads, s.seq_len, 0);
  if (t.sample >= s.samples) return;
  const int64_t row = (static_cast<int64_t>(t.sample) * s.seq_len + t.row) * s.heads + t.head;
  const T *a = static_cast<const T*>(p.d_out) + row * s.head_dim, *b = static_cast<const T*>(p.out) + row * s.head_dim;
  float delta = 0.0f;
  for (int c = t.lane; c < s.head_dim; c += 32) delta = fmaf(to_float(a[c]), to_float(b[c]), delta);
  delta = warp_sum(delta);
  if (t.lane == 0) p.terms_of(t.sample, t.head)[t.row] = make_float2(p.lse[s.lse_at(t.sample, t.head) + t.row], delta);
}

struct Weights {
  float p, ds;
};
// Of query row i and key row j.
template <class T>
__device__ __forceinline__ Weights weights(const Rows<T>& x, const T* d_out_row, int i, int j, float2 terms, int d, float scale) {
  const float p = fast_exp(dot(x.q + i * x.ld, x.k + j * x.ld, d) * scale - terms.x);
  return {p, p * (dot(d_out_row, x.v + j * x.ld, d) - terms.y) * scale};
}

template <class T>
__global__ void __launch_bounds__(threads) backward_queries_general(AttentionBackward p, float scale) {
  const AttentionShape& s = p.shape;
  const Task t(s.heads, s.seq_len, s.head_dim);
  if (t.sample >= s.samples) return;
  const int d = s.head_dim;
  const Rows<T> x(s, p.qkv, t.sample, t.head, t.head / s.group());
  const T* d_out = static_cast<const T*>(p.d_out) + ((x.row0 + t.row) * s.heads + t.head) * d;
  const float2 terms = p.terms_of(t.sample, t.head)[t.row];
  for (int k0 = x.document ? x.document[t.row] : 0; k0 <= t.row; k0 += 32) {
    const int n = min(32, t.row + 1 - k0);
    const float ds = t.lane < n ? weights(x, d_out, t.row, k0 + t.lane, terms, d, scale).ds : 0.0f;
    add_rows(t.sums, ds, x.k + k0 * x.ld, x.ld, n, d, t.lane);
  }
  T* dq = static_cast<T*>(p.d_qkv) + (x.row0 + t.row) * x.ld + t.head * d;
  for (int c = t.lane; c < d; c += 32) dq[c] = from_float<T>(t.sums[c]);
}

template <class T>
__global__ void __launch_bounds__(threads) backward_keys_general(AttentionBackward p, float scale) {
  const AttentionShape& s = p.shape;
  const Task t(s.kv_heads, s.seq_len, 2 * s.head_dim);
  if (t.sample >= s.samples) return;
  const int d = s.head_dim;
  for (int head = t.head * s.group(); head < (t.head + 1) * s.group(); ++head) {
    const Rows<T> x(s, p.qkv, t.sample, head, t.head);
    const int64_t ld_out = static_cast<int64_t>(s.heads) * d;
    const T* d_out = static_cast<const T*>(p.d_out) + x.row0 * ld_out + head * d;
    const float2* terms = p.terms_of(t.sample, head);
    for (int q0 = t.row; q0 < s.seq_len; q0 += 32) {
      if (x.document && x.document[q0] > t.row) break;   // nor does a later query see this key
      const int n = min(32, s.seq_len - q0), i = q0 + t.lane;
      Weights w{0.0f, 0.0f};
      if (t.lane < n && (!x.document || x.document[i] <= t.row)) w = weights(x, d_out + i * ld_out, i, t.row, terms[i], d, scale);
      add_rows(t.sums, w.ds, x.q + q0 * x.ld, x.ld, n, d, t.lane);
      add_rows(t.sums + d, w.p, d_out + q0 * ld_out, ld_out, n, d, t.lane);
    }
  }
  const Rows<T> x(s, p.qkv, t.sample, 0, t.head);
  T* dk = static_cast<T*>(p.d_qkv) + (x.row0 + t.row) * x.ld + (s.heads + t.head) * d;
  T* dv = dk + s.kv_heads * d;
  for (int c = t.lane; c < d; c += 32) {
    dk[c] = from_float<T>(t.sums[c]);
    dv[c] = from_float<T>(t.sums[d + c]);
  }
}

// One warp for each row of `heads` heads, with `floats` floats of shared memory each.
template <class P>
void launch_rows(const char* what, cudaStream_t stream, void (*kernel)(P, float), const P& p, int heads, int floats, float factor) {
  const size_t shared = static_cast<size_t>(warps * floats) * sizeof(float);
  launch(what, stream, kernel, blocks_for(p.shape.samples * heads * p.shape.seq_len, warps), threads, shared, p, factor);
}

float scale_of(const AttentionShape& s) { return 1.0f / std::sqrt(static_cast<float>(s.head_dim)); }

}  // namespace

void launch_attention_general(cudaStream_t stream, const AttentionForward& p) {
  launch_rows("attention, general", stream, p.shape.wide ? forward_general<float> : forward_general<bf16>, p, p.shape.heads, p.shape.head_dim, scale_of(p.shape));
}

void launch_attention_backward_general(cudaStream_t stream, const AttentionBackward& p) {
  const AttentionShape& s = p.shape;
  launch_rows("terms of attention's backward, general", stream, s.wide ? terms_general<float> : terms_general<bf16>, p, s.heads, 0, 0.0f);
  launch_rows("dK and dV, general", stream, s.wide ? backward_keys_general<float> : backward_keys_general<bf16>, p, s.kv_heads, 2 * s.head_dim, scale_of(s));
  launch_rows("dQ, general", stream, s.wide ? backward_queries_general<float> : backward_queries_general<bf16>, p, s.heads, s.head_dim, scale_of(s));
}

}  // namespace octet::cuda
