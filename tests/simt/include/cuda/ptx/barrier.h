// src/cuda/ptx/barrier.h in C++.
#pragma once
#include <cuda_runtime.h>

#include <stdexcept>

#include "cuda/tensor_map.h"
#include "host_tensor_map.h"

namespace octet::ptx {

struct alignas(8) Barrier {
  int32_t bytes;             // announced, not yet come
  uint16_t awaited;          // arrivals of this phase
  uint8_t arrivals, phase;   // of every phase; 0 or 1
};
inline void end_phase_if_complete(Barrier& b) {
  if (b.awaited > 0 || b.bytes != 0) return;
  b.awaited = b.arrivals;
  b.phase ^= 1;
}
inline void barrier_init(Barrier& b, int arrivals) { b = {0, static_cast<uint16_t>(arrivals), static_cast<uint8_t>(arrivals), 0}; }
inline void barrier_init_fence() {}
inline void arrive_expecting(Barrier& b, uint32_t bytes) {
  if (b.awaited == 0) throw std::runtime_error("simt: more arrivals at a barrier than its phase has");
  b.bytes += static_cast<int32_t>(bytes);
  if (b.bytes >= 1 << 20) throw std::runtime_error("simt: more bytes than a barrier counts");
  --b.awaited;
  end_phase_if_complete(b);
}
inline void arrive(Barrier& b) { arrive_expecting(b, 0); }
inline void wait(Barrier& b, uint32_t parity) {
  simt::wait_until([&b, parity] { return b.phase != parity; });
}

inline void load_box(void* shared, const TensorMap& map, Barrier& b, int x, int y, int z) {
  simt::do_later([=, &b, to = static_cast<std::byte*>(shared)] {
    b.bytes -= simt::copy_box(to, simt::dynamic_shared_memory(), map, x, y, z);
    end_phase_if_complete(b);
  });
}
inline void load_bytes(void* shared, const void* global, uint32_t bytes, Barrier& b) {
  if ((reinterpret_cast<uintptr_t>(shared) | reinterpret_cast<uintptr_t>(global) | bytes) % 16 != 0) throw std::runtime_error("simt: a bulk copy that is not of whole 16 bytes");
  simt::do_later([=, &b] {
    memcpy(shared, global, bytes);
    b.bytes -= static_cast<int32_t>(bytes);
    end_phase_if_complete(b);
  });
}
inline void prefetch_map(const TensorMap&) {}

inline void named_wait(int id, int threads) { simt::named_barrier(id, threads, true); }
inline void named_arrive(int id, int threads) { simt::named_barrier(id, threads, false); }

}  // namespace octet::ptx
