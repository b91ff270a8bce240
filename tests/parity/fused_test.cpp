// Producers that write images of what they compute: the bits of the producer followed by quantize.
#include <fmt/format.h>

#include "cpu/cpu_ops.h"
#include "cuda/cuda_ops.h"
#include "images.h"
#include "ops/activation.h"

using namespace parity;

namespace {

// Gradients of both halves, whose amaxes and scales differ. Elements that are not finite come from dy and from gates and ups.
TEST(fused, swiglu_backward_of_every_recipe) {
  Rig rig;
  for (const Spec& spec : specs()) {
    for (const ImageSize& extent : image_sizes) {
      const int64_t rows = extent.rows, cols = extent.cols;   // Clang 14 captures no structured bindings
      for (const Dtype dtype : {Dtype::bf16, Dtype::f32}) {
        if (dtype == Dtype::f32 && rows != 130) continue;
        const std::string size = fmt::format("{} {}x{}", name(dtype), rows, cols);
        Host dy = matrix("dy " + size, dtype, rows, cols, rows == 32), gate_up = normal("gate_up " + size, dtype, {rows, 2 * cols}, 3.0);
        if (rows >= 130) {
          gate_up.set(cols / 2, std::numeric_limits<double>::quiet_NaN());
          gate_up.set(gate_up.elements() - 1, std::numeric_limits<double>::infinity());
        }
        const auto produce = [&](bool with_value) -> Producer {
          return [&, with_value](Ctx& ctx, bool device, const std::vector<QuantizedOut>& out) {
            Host d(dtype, gate_up.shape());
            const auto give = [&](Host& h, bool blank) { return !device ? h.tensor() : ctx.planning() ? Tensor{nullptr, h.dtype(), h.shape()} : rig.upload(h, blank); };
            const Tensor value = with_value ? give(d, true) : Tensor{};
            (device ? cuda::swiglu_backward : cpu::swiglu_backward)(ctx, give(dy, false), give(gate_up, false), value, out[0], out[1]);
          };
        };
        const bool r = spec.row.quantized(), k = spec.col.quantized();
        compare(rig, {spec, r, k, false}, rows, cols, produce(false), "gradient of SwiGLU " + size, 2);
        if (rows != 32 || !r || !k) continue;
        compare(rig, {spec, r, k, true}, rows, cols, produce(false), "gradient of SwiGLU " + size, 2);
        compare(rig, {spec, true, false, false}, rows, cols, produce(true), "gradient of SwiGLU, value and row image " + size, 2);
        compare(rig, {spec, false, true, false}, rows, cols, produce(true), "gradient of SwiGLU, value and column image " + size, 2);
      }
    }
  }
}

// One half may have a stored scale while the other is still scaled by itself: a site that calibration has not seen yet.
TEST(fused, swiglu_backward_halves_with_other_scales) {
  Rig rig;
  QuantSpec spec = block_spec(Dtype::e5m2, 0, 0);
  spec.scaling = Scaling::delayed;
  const int64_t rows = 144, cols = 208;
  Host dy = normal("dy", Dtype::bf16, {rows, cols}), gate_up = normal("gate_up", Dtype::bf16, {rows, 2 * cols}, 3.0);
  const Producer produce = [&](Ctx& ctx, bool device, const std::vector<QuantizedOut>& out) {
    const auto give = [&](Host& h) { return !device ? h.tensor() : ctx.planning() ? Tensor{nullptr, h.dtype(), h.shape()} : rig.upload(h); };
    std::vector<QuantizedOut> parts = out;
    parts[1].target.stored_scale = nullptr;
    (device ? cuda::swiglu_backward : cpu::swiglu_backward)(ctx, give(dy), give(gate_up), {}, parts[0], parts[1]);
  };
  compare(rig, {{"delayed and current", spec, spec}, true, true, false}, rows, cols, produce, "halves", 2);
}

// The values are those written without images, in both families.
TEST(fused, swiglu_backward_values) {
  Rig rig;
  for (const auto& [rows, cols] : {ImageSize{144, 208}, {130, 77}}) {
    Host dy = normal("dy", Dtype::bf16, {rows, cols}), gate_up = normal("gate_up", Dtype::bf16, {rows, 2 * cols}, 3.0);
    const QuantSpec spec = block_spec(Dtype::e4m3, 1, 128);
    const Tensor dyt = rig.upload(dy), gut = rig.upload(gate_up), value = rig.upload(gate_up, true), alone = rig.upload(gate_up, true);
    const auto images = [&] { return QuantizedOut{spec, spec, rig.upload_image(spec, rows, cols, false), rig.upload_image(spec, rows, cols, true), {}}; };
    const QuantizedOut gate = images(), up = images();
    rig.on_device([&](Ctx& ctx) { cuda::swiglu_backward(ctx, dyt, gut, value, gate, up); });
    rig.on_device([&](Ctx& ctx) { cuda::swiglu_backward(ctx, dyt, gut, alone, {}, {}); });
    expect_same(rig.download(value), rig.download(alone), fmt::format("values with and without images {}x{}", rows, cols));
    rig.reset();
  }
}

}  // namespace
