#include "core/arena.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace octet {
namespace {
constexpr size_t alignment_bytes = 64;  // one cache line, and the widest vector a kernel may use
size_t align_up(size_t n) { return (n + alignment_bytes - 1) / alignment_bytes * alignment_bytes; }
}  // namespace

std::string to_string(const Shape& s) {
  std::string out = "[";
  for (int i = 0; i < s.rank(); ++i) out += (i ? ", " : "") + std::to_string(s[i]);
  return out + "]";
}

void Arena::Free::operator()(std::byte* p) const { std::free(p); }

Arena::Arena(size_t capacity, bool poison) : capacity_(align_up(std::max<size_t>(capacity, 1))), poison_(poison) {
  storage_.reset(static_cast<std::byte*>(std::aligned_alloc(alignment_bytes, capacity_)));
  if (!storage_) throw Error(ExitCode::device, fmt::format("cannot allocate {} bytes of memory", capacity_), "memory plan", "use a smaller model, micro-batch or sequence");
  base_ = storage_.get();
  if (poison_) std::memset(base_, 0xFF, capacity_);
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
  if (poison_ && used_ > mark) std::memset(base_ + mark, 0xFF, used_ - mark);
  used_ = mark;
}

}  // namespace octet
