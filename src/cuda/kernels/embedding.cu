// Token embedding, and its gradient without atomics: positions of the same token are chained in order, and the CTA of a token's first position walks
// its chain, so that additions have the CPU backend's order.
#include "cuda/kernels/rows.h"
#include "cuda/kernels/vector.cuh"
#include "cuda/launch.h"

namespace octet::cuda {
namespace {

constexpr int threads = 256;
constexpr int32_t no_position = -1;   // the end of a chain

// One CTA a token; rows are copied by 16 bytes where they can be.
__global__ void __launch_bounds__(threads) gather(const char* table, TableRows has, const int32_t* tokens, char* out, int64_t row_bytes) {
  const int64_t row = tokens[blockIdx.x] - has.first;
  char* to = out + blockIdx.x * row_bytes;
  if (row < 0 || row >= has.rows) {
    for (int64_t i = threadIdx.x; i < row_bytes; i += threads) to[i] = 0;
    return;
  }
  const char* from = table + row * row_bytes;
  const bool wide = row_bytes % 16 == 0 && is_aligned(from) && is_aligned(to);
  if (wide) {
    for (int64_t i = threadIdx.x * 16; i < row_bytes; i += threads * 16) ptx::store_16(to + i, ptx::load_16(from + i));
  } else {
    for (int64_t i = threadIdx.x; i < row_bytes; i += threads) to[i] = from[i];
  }
}

// next[t]: the following position of the same token. first[t]: whether t is the token's first position. Every position looks at all others.
__global__ void __launch_bounds__(threads) chain(const int32_t* tokens, int64_t count, int32_t* next, int32_t* first) {
  __shared__ int32_t chunk[threads];
  const int64_t t = static_cast<int64_t>(blockIdx.x) * threads + threadIdx.x;
  const int32_t mine = t < count ? tokens[t] : -1;
  int32_t following = no_position;
  bool earlier = false;
  for (int64_t begin = 0; begin < count; begin += threads) {
    __syncthreads();
    if (begin + threadIdx.x < count) chunk[threadIdx.x] = tokens[begin + threadIdx.x];
    __syncthreads();
    const int64_t end = begin + threads < count ? threads : count - begin;
    for (int64_t i = 0; i < end; ++i) {
      if (chunk[i] != mine) continue;
      earlier |= begin + i < t;
      if (begin + i > t && following == no_position) following = static_cast<int32_t>(begin + i);
    }
  }
  if (t >= count) return;
  next[t] = following;
  first[t] = earlier ? 0 : 1;
}

template <class T>
__global__ void __launch_bounds__(threads) scatter_add(const T* d_out, const int32_t* tokens, float* d_table, TableRows has, int64_t cols, const int32_t* next, const int32_t* first) {
  const int64_t t = blockIdx.x;
  const int64_t table_row = tokens[t] - has.first;
  if (!first[t] || table_row < 0 || table_row >= has.rows) return;
  float* row = d_table + table_row * cols;
  for (int64_t c = threadIdx.x * vector_width; c < cols; c += threads * vector_width) {
    Vector<float> sum = load(static_cast<const float*>(row), c, cols);
    for (int64_t at = t; at != no_position; at = next[at]) {
      const Vector<T> g = load(d_out + at * cols, c, cols);
#pragma unroll
      for (int i = 0; i < vector_width; ++i) sum.set(i, sum.at(i) + g.at(i));
    }
    store(row, c, cols, sum);
  }
}

}  // namespace

void launch_embedding(cudaStream_t stream, const void* table, const TableRows& has, const int32_t* tokens, void* out, int64_t count, int64_t row_bytes) {
  launch("gather embeddings", stream, gather, static_cast<unsigned>(count), threads, 0, static_cast<const char*>(table), has, tokens, static_cast<char*>(out), row_bytes);
}

void launch_embedding_backward(cudaStream_t stream, bool wide, const void* d_out, const int32_t* tokens, float* d_table, const TableRows& has, int64_t count, int64_t cols, int32_t* scratch) {
  int32_t *next = scratch, *first = scratch + count;
  launch("chain positions", stream, chain, blocks_for(count, threads), threads, 0, tokens, count, next, first);
  if (wide) {
    launch("gradient of the embedding", stream, scatter_add<float>, static_cast<unsigned>(count), threads, 0, static_cast<const float*>(d_out), tokens, d_table, has, cols, next, first);
  } else {
    launch("gradient of the embedding", stream, scatter_add<bf16>, static_cast<unsigned>(count), threads, 0, static_cast<const bf16*>(d_out), tokens, d_table, has, cols, next, first);
  }
}

}  // namespace octet::cuda
