// The AdamW update of eight neighbouring elements (ops/optimizer.h): of the kernel that does nothing else, and of tiles whose images are made as they are updated.
#pragma once
#include "cuda/kernels/philox.cuh"
#include "cuda/kernels/state.h"
#include "cuda/kernels/vector.cuh"

namespace octet::cuda {

// Random words of elements [c, c + 4). Where their numbers are not those of one block, each word has its own: a loop that stays one, for places that are rare.
__device__ __forceinline__ uint4 random_four(const AdamwParams& p, bool in_blocks, int64_t c) {
  const PhiloxStream stream(p.seed, RngPurpose::moments, p.name_hash, p.key->step);
  if (in_blocks) return stream.block(static_cast<uint64_t>(p.numbers.of(c) / 4));
  uint4 words{};
#pragma unroll 1
  for (int i = 0; i < 4; ++i) words = make_uint4(words.y, words.z, words.w, stream.word(static_cast<uint64_t>(p.numbers.of(c + i))));
  return words;
}

// Elements [c, c + 8) of those that exist, c a multiple of 8. Two blocks of random words for BF16 moments.
template <bool halves, class Moment>
__device__ __forceinline__ void adamw_eight(const AdamwParams& p, float grad_scale, int64_t c) {
  const int64_t n = p.elements;
  Moment *m = static_cast<Moment*>(p.m), *v = static_cast<Moment*>(p.v);
  bf16* working = reinterpret_cast<bf16*>(p.working);
  const bool in_blocks = p.numbers.in_blocks();
  const Vector<float> g = load(p.grad, c, n);
  Vector<Moment> first = load(static_cast<const Moment*>(m), c, n), second = load(static_cast<const Moment*>(v), c, n);
  Vector<float> w{};
  Vector<bf16> upper{}, lower{};
  if constexpr (halves) {
    upper = load(static_cast<const bf16*>(working), c, n);
    lower = load(reinterpret_cast<const bf16*>(p.remainder), c, n);
  } else {
    w = load(static_cast<const float*>(p.master), c, n);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint4 random{};
    if constexpr (sizeof(Moment) == 2) random = random_four(p, in_blocks, c + 4 * half);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int i = 4 * half + j;
      if constexpr (halves) w.values[i] = join_master(bf16{upper.bits(i)}, lower.bits(i));
      float mi = first.at(i), vi = second.at(i);
      adamw_element(w.values[i], mi, vi, g.values[i], p.step, grad_scale);
      if constexpr (sizeof(Moment) == 2) {
        const uint32_t word = j == 0 ? random.x : j == 1 ? random.y : j == 2 ? random.z : random.w;
        first.set_bits(i, to_bf16_stochastic(mi, word).bits);
        second.set_bits(i, to_bf16_stochastic(vi, word >> 16).bits);
      } else {
        first.set(i, mi);
        second.set(i, vi);
      }
      if constexpr (halves) {
        const SplitMaster s = split_master(w.values[i]);
        upper.set_bits(i, s.weight.bits);
        lower.set_bits(i, s.remainder);
      } else if (working) {
        upper.set(i, w.values[i]);
      }
    }
  }
  store(m, c, n, first);
  store(v, c, n, second);
  if constexpr (halves) {
    store(reinterpret_cast<bf16*>(p.remainder), c, n, lower);
  } else {
    store(p.master, c, n, w);
  }
  if (working) store(working, c, n, upper);
}

}  // namespace octet::cuda
