#include "ops/optimizer.h"

#include <algorithm>
#include <cmath>

#include "core/philox.h"
#include "cpu/convert.h"
#include "cpu/cpu_ops.h"

namespace octet::cpu {
namespace {
constexpr int64_t tile = 1 << 13;

struct Moments {
  float m[4], v[4];
};

// Elements [begin, begin + 4) of both moments, as f32 and back. BF16 ones are rounded stochastically with the four words of one Philox block.
Moments read_moments(const AdamwTensors& t, int64_t begin, int64_t n) {
  Moments x{};
  for (int64_t i = 0; i < n; ++i) {
    x.m[i] = t.m.dtype == Dtype::f32 ? t.m.as<float>()[begin + i] : to_float(t.m.as<bf16>()[begin + i]);
    x.v[i] = t.v.dtype == Dtype::f32 ? t.v.as<float>()[begin + i] : to_float(t.v.as<bf16>()[begin + i]);
  }
  return x;
}

void write_moments(const AdamwTensors& t, int64_t begin, int64_t n, const Moments& x, const Philox& rng) {
  if (t.m.dtype == Dtype::f32) {
    std::copy(x.m, x.m + n, t.m.as<float>() + begin);
    std::copy(x.v, x.v + n, t.v.as<float>() + begin);
    return;
  }
  const auto words = rng.block(static_cast<uint64_t>((t.first_element + begin) / 4));
  for (int64_t i = 0; i < n; ++i) {
    t.m.as<bf16>()[begin + i] = to_bf16_stochastic(x.m[i], words[static_cast<size_t>(i)]);
    t.v.as<bf16>()[begin + i] = to_bf16_stochastic(x.v[i], words[static_cast<size_t>(i)] >> 16);
  }
}

// Compact states: four elements at a time, which share a block of random words.
void update_compact(const AdamwTensors& t, const AdamwStep& step, float grad_scale, const Philox& rng, int64_t begin, int64_t end) {
  const bool halves = t.remainder.shape.rank() != 0;
  for (int64_t i = begin; i < end; i += 4) {
    const int64_t n = std::min<int64_t>(4, end - i);
    Moments x = read_moments(t, i, n);
    for (int64_t j = 0; j < n; ++j) {
      float w = halves ? join_master(t.working.as<bf16>()[i + j], t.remainder.as<uint16_t>()[i + j]) : t.master.as<float>()[i + j];
      adamw_element(w, x.m[j], x.v[j], t.grad.as<float>()[i + j], step, grad_scale);
      if (halves) {
        const SplitMaster s = split_master(w);
        t.working.as<bf16>()[i + j] = s.weight;
        t.remainder.as<uint16_t>()[i + j] = s.remainder;
      } else {
        t.master.as<float>()[i + j] = w;
      }
    }
    write_moments(t, i, n, x, rng);
  }
}

void update(Ctx& ctx, const AdamwTensors& t, const AdamwStep& step, uint64_t name_hash, const StepControl* control) {
  const float scale = control->grad_scale;
  const bool halves = t.remainder.shape.rank() != 0, compact = halves || t.m.dtype == Dtype::bf16;
  const Philox rng(ctx.seed, RngPurpose::moments, name_hash, t.m.dtype == Dtype::bf16 ? ctx.key->step : 0);
  const float* g = t.grad.as<float>();
  parallel_tiles(ctx.pool(), t.grad.elements(), tile, [&](int64_t begin, int64_t end, int) {
    if (compact) {
      update_compact(t, step, scale, rng, begin, end);
    } else {
      float *w = t.master.as<float>(), *m = t.m.as<float>(), *v = t.v.as<float>();
      for (int64_t i = begin; i < end; ++i) adamw_element(w[i], m[i], v[i], g[i], step, scale);
    }
    if (!halves && t.working) narrow(t.master.as<float>() + begin, t.working.as<bf16>() + begin, end - begin);
  });
}

}  // namespace

void adamw(Ctx& ctx, const AdamwTensors& t, const AdamwStep& step, uint64_t name_hash, const StepControl* control, const QuantizedOut& images) {
  if (!ctx.planning() && !control->skip) update(ctx, t, step, name_hash, control);
  if (images.wanted()) quantize(ctx, t.working.shape.rank() ? t.working : t.master, images);
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
