// SIMT on the host: runs CUDA kernels of src/cuda as ordinary C++, one fiber a CUDA thread, so that their logic is tested where there is no GPU.
//
// The kernels are compiled unchanged by the host compiler against tests/simt/include, which stands before src/ on the include path: it has the
// part of cuda_runtime.h that src/cuda uses, and src/cuda/ptx with each instruction written out in C++ (numerics/*.h, explicit fma).
// A thread runs until it reaches a barrier; warp-wide operations are barriers of 32 threads. Blocks run one after the other.
//
// What Hopper does beside its threads, bulk copies (TMA) and products of a warpgroup (WGMMA), happens at once or as late as allowed, in the combinations of
// Order: a reader that did not wait shows, and so does a copy into memory whose product nobody has waited for.
//
// It finds: wrong indices and masks (by the guard bytes of tests/parity), missing barriers (threads are run in an order that
// differs from block to block, see Order), asynchronous copies and products that nobody waited for, accumulators that are read before any thread waited for them (they are NaN until then), reads of unwritten shared memory (dynamic shared memory begins as NaN patterns), divergent barriers
// (reported as a deadlock). It does not find: races between blocks, weak memory ordering, missing fences, a wait for a product that only some warps lack, wrong PTX. Those need the GPU (tests/parity).
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>

struct CUstream_st;
struct CUgraph_st;
struct CUgraphExec_st;

namespace simt {

struct Index3 {
  unsigned x = 1, y = 1, z = 1;
};

// In which order the threads of a block run between barriers, and when bulk copies and products are done: forward, late; backward, both at once; interleaved, late and the newest copy first;
// eager_copies, in the order of forward with copies at once and products late. Results must not depend on it.
enum class Order { forward, backward, interleaved, eager_copies };
void set_order(Order order);

// The running thread.
struct Thread {
  Index3 thread_index, block_index, block_dim, grid_dim;
};
const Thread& thread();
std::byte* dynamic_shared_memory();

void block_barrier();
// Waits for the live threads of the warp.
void warp_barrier();
// Every lane gives 8 bytes and gets those of lane `source` (of itself when source is out of range).
uint64_t exchange(uint64_t value, int source);
// The same for a whole array of words: gives the pointer to lane `source`'s copy of `words` values, valid until the warp's next exchange.
const uint32_t* publish(const uint32_t* values, int words, int source);
int lane();

// Asynchronous copies of the running thread (cp.async): done as late as allowed, when it waits for their group. Copies that a block leaves unfinished are
// an error. Not valid: zeros.
void copy_later(void* to, const void* from, int bytes, bool valid);
void close_copies();
// Until at most `pending` groups are left open.
void finish_copies(int pending);

// Until `ready` says so, which must not change anything.
void wait_until(std::function<bool()> ready);
// What the copy engine does by itself. All of it must be done before a block ends.
void do_later(std::function<void()> work);

// A warpgroup's product d[64 x n] (+)= a . b, of which the running thread has its part of d and, where a is in registers, of a (ptx/wgmma.h).
struct Product {
  float* d = nullptr;
  int n = 0;
  const uint32_t* a_registers = nullptr;
  uint64_t a = 0, b = 0;
  bool transposed_b = false, accumulate = false;
};
void multiply_later(const Product& product);
void close_products();
void finish_products(int pending);

// The block's barriers by number: until `threads` threads have come, of which those with `waits` wait.
void named_barrier(int id, int threads, bool waits);

// Streams do what they are given at once, unless they record. Recorded work is what was submitted, with its arguments as they were then (CUDA graphs).
CUstream_st* make_stream();
bool recording(const CUstream_st* stream);
void submit(CUstream_st* stream, std::function<void()> work);
void begin_recording(CUstream_st* stream);
CUgraph_st* end_recording(CUstream_st* stream);
CUgraphExec_st* instantiate(const CUgraph_st* graph);
void launch(const CUgraphExec_st* executable);
void destroy(CUstream_st* stream);
void destroy(CUgraph_st* graph);
void destroy(CUgraphExec_st* executable);

// Runs `body` once for each thread of the grid. Throws std::runtime_error on a deadlock.
void run(Index3 grid, Index3 block, size_t shared_bytes, const std::function<void()>& body);
// Kernels that this thread has run.
int64_t launches();

}  // namespace simt
