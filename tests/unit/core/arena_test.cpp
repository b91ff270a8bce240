// Arena: alignment, scopes, the dry run, exhaustion, poison.
#include "core/arena.h"

#include <gtest/gtest.h>

#include <cstring>

using namespace octet;

// AddressSanitizer reads this: a refused allocation is to return null as it does without it, not to end the program.
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }

namespace {

bool poisoned(const void* p, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) {
    if (static_cast<const unsigned char*>(p)[i] != 0xFF) return false;
  }
  return true;
}

TEST(arena, allocations_are_aligned_and_apart) {
  Arena arena(4096);
  const char* end = nullptr;
  for (int64_t n : {1, 255, 256, 257, 7}) {
    const Tensor t = arena.alloc(Dtype::u8, {n});
    EXPECT_EQ(reinterpret_cast<uintptr_t>(t.data) % 256, 0u) << n;
    EXPECT_GE(static_cast<const char*>(t.data), end);
    end = static_cast<const char*>(t.data) + n;
  }
  EXPECT_EQ(arena.used_bytes(), 256u * 6);
}

// The same requests on both arenas: what a dry run must predict.
void request(Arena& arena) {
  arena.alloc(Dtype::f32, {3, 5});
  {
    Arena::Scope outer(arena);
    arena.alloc(Dtype::bf16, {100});
    {
      Arena::Scope inner(arena);
      arena.alloc_array<double>(97);
    }
    arena.alloc_array<int64_t>(2);
  }
  arena.alloc(Dtype::u8, {1});
}

TEST(arena, counting_predicts_the_high_water_mark) {
  Arena counted;
  EXPECT_TRUE(counted.counting());
  request(counted);
  Arena real(counted.high_water_bytes());
  EXPECT_FALSE(real.counting());
  EXPECT_NO_THROW(request(real));
  EXPECT_EQ(real.high_water_bytes(), counted.high_water_bytes());
  EXPECT_EQ(real.high_water_bytes(), 256u + 256 + 1024);
  EXPECT_EQ(real.used_bytes(), 512u);
  EXPECT_EQ(counted.alloc(Dtype::f32, {4}).data, nullptr);
}

TEST(arena, a_scope_releases_what_was_taken_in_it) {
  Arena arena(2048);
  const Tensor kept = arena.alloc(Dtype::f32, {64});
  void* first = nullptr;
  for (int round = 0; round < 3; ++round) {
    Arena::Scope scope(arena);
    void* p = arena.alloc(Dtype::f32, {200}).data;
    if (round == 0) first = p;
    EXPECT_EQ(p, first);
  }
  EXPECT_EQ(arena.used_bytes(), kept.bytes());
}

TEST(arena, exhaustion_is_an_internal_error_that_leaves_it_usable) {
  Arena arena(1024, true);
  const Tensor kept = arena.alloc(Dtype::u8, {256});
  std::memset(kept.data, 1, 256);
  try {
    Arena::Scope scope(arena);
    arena.alloc(Dtype::u8, {512});
    arena.alloc(Dtype::u8, {257});
    FAIL() << "1025 bytes fitted into 1024";
  } catch (const Error& e) {
    EXPECT_EQ(e.code, ExitCode::internal);
    EXPECT_EQ(static_cast<int>(e.code), 70);
    EXPECT_NE(std::string(e.what()).find("arena of 1024 bytes exhausted by a request for 257"), std::string::npos) << e.what();
  }
  EXPECT_EQ(arena.used_bytes(), 256u);
  EXPECT_EQ(arena.high_water_bytes(), 768u);
  EXPECT_NO_THROW(arena.alloc(Dtype::u8, {768}));
  EXPECT_EQ(static_cast<const unsigned char*>(kept.data)[255], 1);
}

TEST(arena, poison_covers_fresh_and_released_memory) {
  Arena arena(1024, true);
  EXPECT_TRUE(poisoned(arena.alloc(Dtype::f32, {16}).data, 64));
  void* p = nullptr;
  {
    Arena::Scope scope(arena);
    p = arena.alloc(Dtype::u8, {300}).data;
    std::memset(p, 0, 300);
  }
  EXPECT_TRUE(poisoned(p, 300));
  EXPECT_TRUE(poisoned(arena.alloc(Dtype::u8, {300}).data, 300));
}

TEST(arena, without_poison_released_memory_is_left_alone) {
  Arena arena(256);
  void* p = nullptr;
  {
    Arena::Scope scope(arena);
    p = arena.alloc(Dtype::u8, {100}).data;
    std::memset(p, 5, 100);
  }
  EXPECT_EQ(static_cast<unsigned char*>(p)[99], 5);
}

TEST(arena, a_capacity_no_machine_has_is_reported) {
  try {
    Arena arena(size_t{1} << 62);
    FAIL() << "4 EiB were allocated";
  } catch (const Error& e) {
    EXPECT_EQ(e.code, ExitCode::device);
    EXPECT_NE(std::string(e.what()).find("memory plan: cannot allocate 4611686018427387904 bytes"), std::string::npos) << e.what();
  }
}

}  // namespace
