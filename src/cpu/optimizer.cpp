#include "ops/optimizer.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "core/philox.h"
#include "cpu/convert.h"
#include "cpu/cpu_ops.h"
#include "cpu/tiles.h"
#include "numerics/element_numbers.h"

namespace octet::cpu {
namespace {
constexpr int64_t tile = 1 << 13;

struct Moments {
  float m[4], v[4];
};

// One tensor's update as its tiles need it.
struct Update {
  const AdamwTensors& t;
  AdamwStep step;
  float grad_scale;
  Philox rng;
  ElementNumbers numbers;
};

// The random words of elements [begin, begin + 4), begin a multiple of 4: one Philox block, where their numbers are those of one.
std::array<uint32_t, 4> random_words(const Update& u, int64_t begin) {
  if (u.numbers.in_blocks()) return u.rng.block(static_cast<uint64_t>(u.numbers.of(begin) / 4));
  std::array<uint32_t, 4> words;
  for (size_t i = 0; i < words.size(); ++i) words[i] = u.rng.word(static_cast<uint64_t>(u.numbers.of(begin + static_cast<int64_t>(i))));
  return words;
}

// Elements [begin, begin + 4) of both moments, as f32 and back. BF16 ones are rounded stochastically.
Moments read_moments(const AdamwTensors& t, int64_t begin, int64_t n) {
  Moments x{};
  for (int64_t i = 0; i < n; ++i) {
    x.m[i] = t.m.dtype == Dtype::f32 ? t.m.as<float>()[begin + i] : to_float(t.m.as<bf16>()[begin + i]);
    x.v[i] = t.v.dtype == Dtype::f32 ? t.v.as<float>()[begin + i] : to_float(t.v.as<bf16>()[begin + i]);
  }
  return x;
}

void write_moments(const Update& u, int64_t begin, int64_t n, const Moments& x) {
  const AdamwTensors& t = u.t;
  if (t.m.dtype == Dtype::f32) {
    std::copy(x.m, x.m + n, t.m.as<float>() + begin);
    std::copy(x.v, x.v + n, t.v.as<float>() + begin);
    return;
  }
  const auto words = random_words(u, begin);
  for (int64_t i = 0; i < n; ++i) {
    t.m.as<bf16>()[begin + i] = to_bf16_stochastic(x.m[i], words[static_cast<size_t>(i)]);
    t.v.as<bf16>()[begin + i] = to_bf16_stochastic(x.v[i], words[static_cast<size_t>(i)] >> 16);
  }
}

// Compact states: four elements at a time, which mostly share a block of random words.
void update_compact(const Update& u, int64_t begin, int64_t end) {
  const AdamwTensors& t = u.t;
  const bool halves = t.remainder.shape.rank() != 0;
  for (int64_t i = begin; i < end; i += 4) {
    const int64_t n = std::min<int64_t>(4, end - i);
    Moments x = read_moments(t, i, n);
    for (int64_t j = 0; j < n; ++j) {
      float w = halves ? join_master(t.working.as<bf16>()[i + j], t.remainder.as<uint16_t>()[i + j]) : t.master.as<float>()[i + j];
      adamw_element(w, x.m[j], x.v[j], t.grad.as<float>()[i + j], u.step, u.grad_scale);
      if (halves) {
        const SplitMaster s = split_master(w);
        t.working.as<bf16>()[i + j] = s.weight;
        t.remainder.as<uint16_t>()[i + j] = s.remainder;
      } else {
        t.master.as<float>()[i + j] = w;
      }
    }
    write_moments(u, i, n, x);
  }
}

void update_tile(const Ctx& ctx, const AdamwUpdate& of, const AdamwStep& step, float grad_scale, int64_t begin) {
  const AdamwTensors& t = of.tensors;
  const int64_t end = std::min(begin + tile, t.grad.elements());
  const bool halves = t.remainder.shape.rank() != 0, narrow_moments = t.m.dtype == Dtype::bf16;
  Update u{t, step, grad_scale, Philox(ctx.seed, RngPurpose::moments, of.name_hash, narrow_moments ? ctx.key->step : 0), element_numbers(t.place, t.grad.cols())};
  u.step.weight_decay = of.weight_decay;
  if (halves || narrow_moments) {
    update_compact(u, begin, end);
  } else {
    float *w = t.master.as<float>(), *m = t.m.as<float>(), *v = t.v.as<float>();
    const float* g = t.grad.as<float>();
    for (int64_t i = begin; i < end; ++i) adamw_element(w[i], m[i], v[i], g[i], u.step, grad_scale);
  }
  if (!halves && t.working) narrow(t.master.as<float>() + begin, t.working.as<bf16>() + begin, end - begin);
}

}  // namespace

void adamw(Ctx& ctx, std::span<const AdamwUpdate> updates, const AdamwStep& step, const StepControl* control) {
  Arena::Scope scope(ctx.scratch());
  const TileSequence tiles(ctx, updates.size(), tile, [&](size_t i) { return updates[i].tensors.grad.elements(); });
  if (ctx.planning() || control->skip) return;
  tiles.run(ctx.pool(), [&](size_t i, int64_t begin, int64_t) { update_tile(ctx, updates[i], step, control->grad_scale, begin); });
}

void adamw_quantize(Ctx& ctx, const AdamwUpdate& update, const AdamwStep& step, const StepControl* control, const QuantizedOut& images) {
  adamw(ctx, {&update, 1}, step, control);
  const AdamwTensors& t = update.tensors;
  quantize(ctx, t.working.shape.rank() ? t.working : t.master, images);
}

void decide_step(Ctx& ctx, const StepInputs& in, StepOutcome* outcome) {
  if (ctx.planning()) return;
  double squares = 0;
  for (int64_t i = 0; i < in.parameters; ++i) squares += in.squares[i];
  outcome->nonfinite = 0;
  for (int64_t i = 0; i < in.sites; ++i) outcome->nonfinite += in.nonfinite[i];
  outcome->grad_norm = std::sqrt(squares);
  outcome->control.grad_scale = in.clip_norm > 0 ? static_cast<float>(std::min(1.0, in.clip_norm / (outcome->grad_norm + 1e-6))) : 1.0f;
  outcome->control.skip = !std::isfinite(*in.loss_sum) || !std::isfinite(outcome->grad_norm) || outcome->nonfinite > 0;
}

void cast_weights(Ctx& ctx, const Tensor& master, const Tensor& working) {
  if (ctx.planning()) return;
  parallel_tiles(ctx.pool(), master.elements(), tile, [&](int64_t begin, int64_t end, int) {
    narrow(master.as<float>() + begin, working.as<bf16>() + begin, end - begin);
  });
}

}  // namespace octet::cpu
