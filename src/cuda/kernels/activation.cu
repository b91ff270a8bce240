// Gradient of SwiGLU when only its values are wanted: both halves in one pass. With images it is a Source, as the forward is: kernels/source.cuh.
#include "cuda/kernels/rows.h"
#include "cuda/kernels/source.cuh"
#include "cuda/kernels/vector.cuh"
#include "cuda/launch.h"

namespace octet::cuda {
namespace {

constexpr int threads = 256;

template <class T>
__global__ void __launch_bounds__(threads) swiglu_backward(const T* dy, const T* gate_up, T* d_gate_up, int64_t rows, int64_t cols) {
  const int64_t vectors = (cols + vector_width - 1) / vector_width, i = static_cast<int64_t>(blockIdx.x) * threads + threadIdx.x;
  if (i >= rows * vectors) return;
  const int64_t row = i / vectors, c = i % vectors * vector_width;
  const T *gate_row = gate_up + row * 2 * cols, *up_row = gate_row + cols;
  const Vector<T> d = load(dy + row * cols, c, cols), gate = load(gate_row, c, cols), up = load(up_row, c, cols);
  Vector<T> d_gate{}, d_up{};
#pragma unroll
  for (int e = 0; e < vector_width; ++e) {
    const SwigluGrad g = swiglu_grad(d.at(e), gate.at(e), up.at(e));
    d_gate.set(e, g.gate);
    d_up.set(e, g.up);
  }
  store(d_gate_up + row * 2 * cols, c, cols, d_gate);
  store(d_gate_up + row * 2 * cols + cols, c, cols, d_up);
}

}  // namespace

void launch_swiglu_backward(cudaStream_t stream, bool wide, const void* dy, const void* gate_up, void* d_gate_up, int64_t rows, int64_t cols) {
  const unsigned blocks = blocks_for(rows * ((cols + vector_width - 1) / vector_width), threads);
  if (wide) {
    launch("gradient of SwiGLU", stream, swiglu_backward<float>, blocks, threads, 0, static_cast<const float*>(dy), static_cast<const float*>(gate_up),
           static_cast<float*>(d_gate_up), rows, cols);
  } else {
    launch("gradient of SwiGLU", stream, swiglu_backward<bf16>, blocks, threads, 0, static_cast<const bf16*>(dy), static_cast<const bf16*>(gate_up),
           static_cast<bf16*>(d_gate_up), rows, cols);
  }
}

}  // namespace octet::cuda
