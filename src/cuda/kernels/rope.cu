// Rotary embedding with optional QK-norm, in place or not: one warp a head of a row, its elements in shared memory.
#include "cuda/kernels/reduce.cuh"
#include "cuda/kernels/rows.h"
#include "cuda/launch.h"
#include "cuda/ptx/memory.h"
#include "numerics/bf16.h"

namespace octet::cuda {
namespace {

constexpr int warps = 8, threads = 32 * warps, tile_rows = 16;

template <class T>
__device__ __forceinline__ float read(const void* p, int64_t i) { return to_float(static_cast<const T*>(p)[i]); }

// (a, b) -> (a cos - b sin, b cos + a sin); direction -1 turns back.
__device__ __forceinline__ void rotate(float* u, const float* cos_sin, int rotary_dim, float direction, int lane) {
  const int half = rotary_dim / 2;
  for (int i = lane; i < half; i += 32) {
    const float a = u[i], b = u[i + half], c = cos_sin[i], s = cos_sin[half + i] * direction;
    u[i] = a * c - b * s;
    u[i + half] = b * c + a * s;
  }
}

template <class T>
__global__ void __launch_bounds__(threads) rope_forward(Rope p) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32, d = p.head_dim, heads = p.heads + 2 * p.kv_heads;
  const int64_t task = static_cast<int64_t>(blockIdx.x) * warps + warp, row = task / heads;
  const int head = static_cast<int>(task % heads), rotated = p.heads + p.kv_heads;
  if (row >= p.rows) return;
  float* u = ptx::dynamic_shared<float>() + warp * d;
  const int64_t at = (row * heads + head) * d;
  if (head >= rotated) {   // values pass through
    if (p.in == p.out) return;
    for (int i = lane; i < d; i += 32) static_cast<T*>(p.out)[at + i] = static_cast<const T*>(p.in)[at + i];
    return;
  }
  float squares = 0;
  for (int i = lane; i < d; i += 32) {
    u[i] = read<T>(p.in, at + i);
    squares = fmaf(u[i], u[i], squares);
  }
  if (p.gamma_q) {
    const float rstd = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(d) + p.eps);
    if (lane == 0) p.rstd[row * rotated + head] = rstd;
    const void* gamma = head < p.heads ? p.gamma_q : p.gamma_k;
    for (int i = lane; i < d; i += 32) u[i] = u[i] * rstd * read<T>(gamma, i);
  }
  __syncwarp();
  rotate(u, p.cos_sin + static_cast<int64_t>(p.positions[row]) * p.rotary_dim, p.rotary_dim, 1.0f, lane);
  __syncwarp();
  for (int i = lane; i < d; i += 32) static_cast<T*>(p.out)[at + i] = from_float<T>(u[i]);
}

// One CTA a tile of rows; a warp has every eighth head of it and adds its share of the gradients of gamma in its own shared memory.
template <class T>
__global__ void __launch_bounds__(threads) rope_backward(Rope p) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32, d = p.head_dim, heads = p.heads + 2 * p.kv_heads;
  const int rotated = p.heads + p.kv_heads;
  float* u = ptx::dynamic_shared<float>() + warp * 3 * d;
  float* dgamma = u + d;   // q, then k
  if (p.gamma_q) {
    for (int i = lane; i < 2 * d; i += 32) dgamma[i] = 0.0f;
  }
  const int64_t first = static_cast<int64_t>(blockIdx.x) * tile_rows, rows = first + tile_rows < p.rows ? tile_rows : p.rows - first;
  for (int64_t task = warp; task < rows * heads; task += warps) {
    const int64_t row = first + task / heads, at = (row * heads + task % heads) * d;
    const int head = static_cast<int>(task % heads);
    if (head >= rotated) {
      if (p.in == p.out) continue;
      for (int i = lane; i < d; i += 32) static_cast<T*>(p.out)[at + i] = static_cast<const T*>(p.in)[at + i];
      continue;
    }
    for (int i = lane; i < d; i += 32) u[i] = read<T>(p.in, at + i);
    __syncwarp();
    rotate(u, p.cos_sin + static_cast<int64_t>(p.positions[row]) * p.rotary_dim, p.rotary_dim, -1.0f, lane);
    __syncwarp();
    if (p.gamma_q) {
      const void* gamma = head < p.heads ? p.gamma_q : p.gamma_k;
      float* dg = dgamma + (head < p.heads ? 0 : d);
      const float rstd = p.rstd[row * rotated + head];
      float dot = 0;
      for (int i = lane; i < d; i += 32) {
        const float s = read<T>(p.source, at + i);
        dg[i] += u[i] * (s * rstd);
        u[i] *= read<T>(gamma, i);
        dot = fmaf(u[i], s, dot);
      }
      const float factor = warp_sum(dot) / static_cast<float>(d) * rstd * rstd;
      for (int i = lane; i < d; i += 32) u[i] = rstd * (u[i] - read<T>(p.source, at + i) * factor);
    }
    for (int i = lane; i < d; i += 32) static_cast<T*>(p.out)[at + i] = from_float<T>(u[i]);
    __syncwarp();
  }
  if (!p.gamma_q) return;
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < 2 * d; i += threads) {
    float sum = 0;
    for (int w = 0; w < warps; ++w) sum += ptx::dynamic_shared<float>()[w * 3 * d + d + i];
    p.partial[static_cast<int64_t>(blockIdx.x) * 2 * d + i] = sum;
  }
}

__global__ void __launch_bounds__(threads) add_tiles(const float* partial, int64_t tiles, int d, float* q, float* k) {
  const int i = static_cast<int>(blockIdx.x) * threads + static_cast<int>(threadIdx.x);
  if (i >= 2 * d) return;
  float* total = i < d ? q + i : k + i - d;
  float sum = *total;
  for (int64_t t = 0; t < tiles; ++t) sum += partial[t * 2 * d + i];
  *total = sum;
}

}  // namespace

void launch_rope_forward(cudaStream_t stream, const Rope& p) {
  const int64_t tasks = p.rows * (p.heads + 2 * p.kv_heads);
  launch("rotate", stream, p.wide ? rope_forward<float> : rope_forward<bf16>, blocks_for(tasks, warps), threads, static_cast<size_t>(warps * p.head_dim) * sizeof(float), p);
}

int64_t rope_backward_tiles(int64_t rows) { return (rows + tile_rows - 1) / tile_rows; }

void launch_rope_backward(cudaStream_t stream, const Rope& p) {
  const int64_t tiles = rope_backward_tiles(p.rows);
  launch("rotate back", stream, p.wide ? rope_backward<float> : rope_backward<bf16>, static_cast<unsigned>(tiles), threads,
         static_cast<size_t>(warps * 3 * p.head_dim) * sizeof(float), p);
  if (p.gamma_q) {
    launch("gradient of QK-norm", stream, add_tiles, blocks_for(2 * p.head_dim, threads), threads, 0, p.partial, tiles, p.head_dim, p.dgamma_q, p.dgamma_k);
  }
}

}  // namespace octet::cuda
