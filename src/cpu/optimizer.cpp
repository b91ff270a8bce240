#include "ops/optimizer.h"

#include "cpu/convert.h"
#include "cpu/cpu_ops.h"

namespace octet::cpu {
namespace {
constexpr int64_t tile = 1 << 13;
}

void adamw(Ctx& ctx, const Tensor& master, const Tensor& m, const Tensor& v, const Tensor& grad, const Tensor& working, const AdamwStep& step) {
  if (ctx.planning()) return;
  float *w = master.as<float>(), *mp = m.as<float>(), *vp = v.as<float>();
  const float* g = grad.as<float>();
  parallel_tiles(ctx.pool(), master.elements(), tile, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) adamw_element(w[i], mp[i], vp[i], g[i], step);
    if (working) narrow(w + begin, working.as<bf16>() + begin, end - begin);
  });
}

void cast_weights(Ctx& ctx, const Tensor& master, const Tensor& working) {
  if (ctx.planning()) return;
  parallel_tiles(ctx.pool(), master.elements(), tile, [&](int64_t begin, int64_t end, int) {
    narrow(master.as<float>() + begin, working.as<bf16>() + begin, end - begin);
  });
}

}  // namespace octet::cpu
