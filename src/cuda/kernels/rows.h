// Kernels over rows and elements: RMSNorm, SwiGLU backward, RoPE, embedding, loss. ops/*.h has the formulas; pointers are device memory; wide: f32
// instead of bf16. Every launch is asynchronous on `stream`.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

namespace octet::cuda {

// sum = round(x + delta), or x itself where delta is null; rstd of it. y (may be null) = round(sum * rstd * gamma).
struct NormForward {
  bool wide;
  const void *x, *delta, *gamma;
  void *sum, *y;      // sum: written only when delta is there
  float* rstd;
  float eps;
  int64_t rows, cols;
};
void launch_norm_forward(cudaStream_t stream, const NormForward& p);

// partial: [norm_backward_tiles(rows), cols] floats of scratch.
struct NormBackward {
  bool wide;
  const void *dy, *s, *gamma, *d_residual;   // d_residual: may be null, may be dx
  const float* rstd;
  void* dx;
  float *dgamma, *partial;
  int64_t rows, cols;
};
int64_t norm_backward_tiles(int64_t rows);
void launch_norm_backward(cudaStream_t stream, const NormBackward& p);

void launch_swiglu_backward(cudaStream_t stream, bool wide, const void* dy, const void* gate_up, void* d_gate_up, int64_t rows, int64_t cols);

struct Rope {
  bool wide;
  const void* in;            // forward: qkv; backward: d_out
  void* out;                 // may be `in`
  const int32_t* positions;
  const float* cos_sin;      // [positions, rotary_dim]: cosines, then sines
  int64_t rows;
  int heads, kv_heads, head_dim, rotary_dim;
  // QK-norm, null without it.
  const void *gamma_q, *gamma_k;
  float* rstd;               // [rows, heads + kv_heads]: written forward, read backward
  float eps;
  const void* source;        // backward: the forward's input
  float *dgamma_q, *dgamma_k, *partial;   // backward; partial: [rope_backward_tiles(rows), 2 head_dim]
};
int64_t rope_backward_tiles(int64_t rows);
void launch_rope_forward(cudaStream_t stream, const Rope& p);
void launch_rope_backward(cudaStream_t stream, const Rope& p);

// Rows [first, first + rows) of the vocabulary: what a table has.
struct TableRows {
  int64_t first, rows;
};
void launch_embedding(cudaStream_t stream, const void* table, const TableRows& has, const int32_t* tokens, void* out, int64_t count, int64_t row_bytes);
// scratch: [2 count] ints. A token's rows are added in the order of their positions, as on the CPU.
void launch_embedding_backward(cudaStream_t stream, bool wide, const void* d_out, const int32_t* tokens, float* d_table, const TableRows& has, int64_t count, int64_t cols, int32_t* scratch);

struct CrossEntropy {
  bool wide;
  void* logits;              // overwritten by their gradient when there is a grad_scale
  const int32_t* labels;
  float *loss, *z;
  int64_t rows, width, vocab;   // vocab: columns that exist
  float z_coefficient;
  const float* grad_scale;   // null: no gradient
  // Of a vocabulary on several ranks:
  const float* parts = nullptr;   // [shards, rows, 3]
  int64_t shards = 0, first = 0;  // first: number of the first column in the vocabulary
};
void launch_cross_entropy(cudaStream_t stream, const CrossEntropy& p);

struct SoftmaxParts {
  bool wide;
  const void* logits;
  const int32_t* labels;
  float* parts;              // [rows, 3]
  int64_t rows, width, first, columns;
};
void launch_softmax_parts(cudaStream_t stream, const SoftmaxParts& p);

}  // namespace octet::cuda
