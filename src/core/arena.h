// Arena: one block of memory handed out front to back, 256-byte aligned. Sized by a dry run over a counting arena, so that
// no allocation happens in the step and `--dry-run` prints the same figures as the run.
//
// Lifetime: tensors from an arena live until reset() or until the Scope that surrounded their allocation ends.
#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "core/tensor.h"

namespace octet {

// Where an arena's memory comes from: the host's by default, a device's for the CUDA backend (cuda/device.h). Plain functions, so that core knows no CUDA.
struct MemorySource {
  void* user = nullptr;
  void* (*allocate)(void* user, size_t bytes) = nullptr;           // throws Error(device) when there is not enough
  void (*release)(void* user, void* memory) = nullptr;
  void (*fill)(void* user, void* memory, int byte, size_t bytes) = nullptr;   // in the order of the operators' work
};

class Arena {
 public:
  // A counting arena: hands out null tensors and remembers the high-water mark in bytes.
  Arena() = default;
  // An arena of `capacity` bytes. With poison, memory is filled with NaN patterns (0xFF) first and after each Scope,
  // so that a read of stale memory shows.
  explicit Arena(size_t capacity, bool poison = false) : Arena(capacity, host_memory(), poison) {}
  // `source` is copied; its user must outlive the arena.
  Arena(size_t capacity, const MemorySource& source, bool poison);
  static const MemorySource& host_memory();

  Tensor alloc(Dtype dtype, Shape shape);
  template <class T>
  T* alloc_array(int64_t n) {
    return static_cast<T*>(take(static_cast<size_t>(n) * sizeof(T)));
  }

  bool counting() const { return base_ == nullptr; }
  size_t used_bytes() const { return used_; }
  size_t high_water_bytes() const { return high_water_; }
  size_t capacity_bytes() const { return capacity_; }

  // Releases everything allocated since its construction (stack discipline).
  class Scope {
   public:
    explicit Scope(Arena& arena) : arena_(arena), mark_(arena.used_) {}
    ~Scope() { arena_.release(mark_); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Arena& arena_;
    size_t mark_;
  };

 private:
  void* take(size_t bytes);
  void release(size_t mark);

  struct Free {
    MemorySource source;
    void operator()(std::byte* p) const { source.release(source.user, p); }
  };
  std::unique_ptr<std::byte, Free> storage_;
  std::byte* base_ = nullptr;
  size_t capacity_ = 0, used_ = 0, high_water_ = 0;
  bool poison_ = false;
};

}  // namespace octet
