#include "core/arena.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace octet {
namespace {
constexpr size_t alignment_bytes = 256;  // what cudaMalloc gives and cuBLASLt assumes of its operands; on the host more than the widest vector
size_t align_up(size_t n) { return (n + alignment_bytes - 1) / alignment_bytes * alignment_bytes; }

void* allocate_host(void*, size_t bytes) {
  void* memory = std::aligned_alloc(alignment_bytes, bytes);
  if (!memory) throw Error(ExitCode::device, fmt::format("cannot allocate {} bytes of memory", bytes), "memory plan", "use a smaller model, micro-batch or sequence");
  return memory;
}
void release_host(void*, void* memory) { std::free(memory); }
void fill_host(void*, void* memory, int byte, size_t bytes) { std::memset(memory, byte, bytes); }
}  // namespace

std::string to_string(const Shape& s) {
  std::string out = "[";
  for (int i = 0; i < s.rank(); ++i) out += (i ? ", " : "") + std::to_string(s[i]);
  return out + "]";
}

const MemorySource& Arena::host_memory() {
  static constexpr MemorySource host{nullptr, allocate_host, release_host, fill_host};
  return host;
}

Arena::Arena(size_t capacity, const MemorySource& source, bool poison) : capacity_(align_up(std::max<size_t>(capacity, 1))), poison_(poison) {
  storage_ = {static_cast<std::byte*>(source.allocate(source.user, capacity_)), Free{source}};
  base_ = storage_.get();
  if (poison_) source.fill(source.user, base_, 0xFF, capacity_);
}

void* Arena::take(size_t bytes) {
  // A refused request leaves the arena as it was: scopes unwinding over it must not release memory beyond the end.
  OCTET_CHECK(counting() || bytes <= capacity_ - used_, "arena of {} bytes exhausted by a request for {} (used {})", capacity_, bytes, used_);
  const size_t begin = used_;
  used_ += align_up(bytes);
  high_water_ = std::max(high_water_, used_);
  return counting() ? nullptr : base_ + begin;
}

Tensor Arena::alloc(Dtype dtype, Shape shape) {
  Tensor t{nullptr, dtype, shape};
  t.data = take(t.bytes());
  return t;
}

void Arena::release(size_t mark) {
  if (poison_ && used_ > mark) {
    const MemorySource& source = storage_.get_deleter().source;
    try {
      source.fill(source.user, base_ + mark, 0xFF, used_ - mark);
    } catch (const Error&) {   // of a device that has failed: scopes end while that error is on its way
    }
  }
  used_ = mark;
}

}  // namespace octet
