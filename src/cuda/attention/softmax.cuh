// Softmax and its gradient on the accumulators of both families of tensor-core kernels (kernels.h): of forward, and of backward by rows of queries and by columns of queries.
#pragma once
#include <cuda_runtime.h>

#include "cuda/attention/tile.cuh"
#include "cuda/kernels/reduce.cuh"
#include "cuda/ptx/mma.h"

namespace octet::cuda {

// Running maximum of raw scores and this lane's share of the running sum, of rows lane / 4 and lane / 4 + 8 of each 16.
template <int M>
struct Softmax {
  float largest[M][2], sum[M][2];
  __device__ __forceinline__ Softmax() {
#pragma unroll
    for (int m = 0; m < M; ++m) {
      largest[m][0] = largest[m][1] = minus_infinity;
      sum[m][0] = sum[m][1] = 0.0f;
    }
  }
};

// Scores become P relative to the new maximum; the sum is brought to it too, and out is by scale_rows with `correction`, unless this says that no row's maximum moved (usual after
// the first tiles; then all factors are 1). A row that has seen no key yet keeps the maximum -Inf.
template <int M, int N>
__device__ __forceinline__ bool online_softmax(Accumulator<M, N>& s, Softmax<M>& state, float (&correction)[M][2], float scale_log2) {
  bool moved = false;
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float largest = state.largest[m][half];
#pragma unroll
      for (int n = 0; n < N; ++n) largest = fmaxf(largest, fmaxf(s.of[m][n][half * 2], s.of[m][n][half * 2 + 1]));
      largest = fmaxf(largest, __shfl_xor_sync(all_lanes, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(all_lanes, largest, 2));
      const float shift = largest == minus_infinity ? 0.0f : largest * scale_log2;
      const float factor = ptx::exp2_approx(fmaf(state.largest[m][half], scale_log2, -shift));
      moved |= largest != state.largest[m][half];
      float sum = state.sum[m][half] * factor;
#pragma unroll
      for (int n = 0; n < N; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = s.of[m][n][half * 2 + e];
          x = ptx::exp2_approx(fmaf(x, scale_log2, -shift));
          sum += x;
        }
      }
      correction[m][half] = factor;
      state.largest[m][half] = largest;
      state.sum[m][half] = sum;
    }
  }
  return __ballot_sync(all_lanes, moved) != 0;
}

template <int M, int O>
__device__ __forceinline__ void scale_rows(Accumulator<M, O>& out, const float (&factor)[M][2]) {
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int n = 0; n < O; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) out.of[m][n][e] *= factor[m][e / 2];
    }
  }
}

// What divides out by the sum; lse goes to memory.
template <int M>
__device__ __forceinline__ void finish(const Softmax<M>& state, float scale, const QueryWarp& warp, float* lse, float (&inverse)[M][2], int lane) {
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = state.sum[m][half];
      sum += __shfl_xor_sync(all_lanes, sum, 1);
      sum += __shfl_xor_sync(all_lanes, sum, 2);
      inverse[m][half] = 1.0f / sum;
      const int row = warp.first + m * 16 + half * 8 + lane / 4;
      if (lane % 4 == 0 && row <= warp.last) lse[row] = fmaf(state.largest[m][half], scale, logf(sum));
    }
  }
}

// ---- backward: scores become P, and dP becomes dS without its factor scale

// Columns are queries; terms of the tile's queries: (lse log2(e), delta).
template <int M, int N>
__device__ __forceinline__ void to_probabilities(Accumulator<M, N>& s, const float2* terms, float scale_log2, int lane) {
#pragma unroll
  for (int n = 0; n < N; ++n) {
    const float4 two = *reinterpret_cast<const float4*>(terms + n * 8 + lane % 4 * 2);   // lse, delta, lse, delta
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
      for (int e = 0; e < 4; ++e) s.of[m][n][e] = ptx::exp2_approx(fmaf(s.of[m][n][e], scale_log2, e % 2 ? -two.z : -two.x));
    }
  }
}
template <int M, int N>
__device__ __forceinline__ void to_score_gradients(Accumulator<M, N>& dp, const Accumulator<M, N>& p, const float2* terms, int lane) {
#pragma unroll
  for (int n = 0; n < N; ++n) {
    const float4 two = *reinterpret_cast<const float4*>(terms + n * 8 + lane % 4 * 2);
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
      for (int e = 0; e < 4; ++e) dp.of[m][n][e] = p.of[m][n][e] * (dp.of[m][n][e] - (e % 2 ? two.w : two.y));
    }
  }
}

// Rows are queries. What P and dS need of the rows lane / 4 and lane / 4 + 8 of each 16.
template <int M>
struct RowTerms {
  float lse[M][2], delta[M][2];
  __device__ __forceinline__ RowTerms(const float2* terms, const QueryWarp& warp, int lane) {
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = warp.first + m * 16 + half * 8 + lane / 4;
        const float2 t = row <= warp.last ? terms[row] : make_float2(0.0f, 0.0f);
        lse[m][half] = t.x;
        delta[m][half] = t.y;
      }
    }
  }
};

template <int M, int N>
__device__ __forceinline__ void to_probabilities(Accumulator<M, N>& s, const RowTerms<M>& terms, float scale_log2) {
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int n = 0; n < N; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) s.of[m][n][e] = ptx::exp2_approx(fmaf(s.of[m][n][e], scale_log2, -terms.lse[m][e / 2]));
    }
  }
}
template <int M, int N>
__device__ __forceinline__ void to_score_gradients(Accumulator<M, N>& dp, const Accumulator<M, N>& p, const RowTerms<M>& terms) {
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int n = 0; n < N; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) dp.of[m][n][e] = p.of[m][n][e] * (dp.of[m][n][e] - terms.delta[m][e / 2]);
    }
  }
}

template <int M>
__device__ __forceinline__ void fill(float (&x)[M][2], float value) {
#pragma unroll
  for (int m = 0; m < M; ++m) x[m][0] = x[m][1] = value;
}

}  // namespace octet::cuda
