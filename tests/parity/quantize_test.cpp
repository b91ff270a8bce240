// Images of every recipe: the same codes, scales, amaxes and counts from both backends; statistics within rounding of their sums.
#include "cpu/cpu_ops.h"
#include "cuda/cuda_ops.h"
#include "images.h"

using namespace parity;

namespace {

TEST(quantize, plain_matrices_of_every_recipe) {
  Rig rig;
  for (const Spec& spec : specs()) {
    for (const ImageSize& extent : image_sizes) {
      const int64_t rows = extent.rows, cols = extent.cols;   // Clang 14 captures no structured bindings
      for (const Dtype dtype : {Dtype::bf16, Dtype::f32}) {
        if (dtype == Dtype::f32 && rows != 130) continue;
        const std::string size = std::string(name(dtype)) + " " + std::to_string(rows) + "x" + std::to_string(cols);
        Host x = matrix(size, dtype, rows, cols, rows >= 32);
        const Producer produce = [&](Ctx& ctx, bool device, const std::vector<QuantizedOut>& out) {
          if (device) {
            cuda::quantize(ctx, ctx.planning() ? MatrixView(Tensor{nullptr, dtype, {rows, cols}}) : MatrixView(rig.upload(x)), out.front());
          } else {
            cpu::quantize(ctx, x.tensor(), out.front());
          }
        };
        const bool r = spec.row.quantized(), k = spec.col.quantized();
        compare(rig, {spec, r, k, false}, rows, cols, produce, size);
        if (rows == 130 && dtype == Dtype::bf16) compare(rig, {spec, r, k, true}, rows, cols, produce, size);
        if ((rows == 32 || (rows == 130 && dtype == Dtype::bf16)) && r && k) {
          compare(rig, {spec, true, false, false}, rows, cols, produce, size + " row only");
          compare(rig, {spec, false, true, false}, rows, cols, produce, size + " column only");
        }
      }
    }
  }
}

// q inside qkv: rows lie further apart than they are long.
TEST(quantize, columns_of_a_wider_matrix) {
  Rig rig;
  for (const Spec& spec : specs()) {
    Host x = matrix("wide", Dtype::bf16, 160, 512, false);
    const Producer produce = [&](Ctx& ctx, bool device, const std::vector<QuantizedOut>& out) {
      const Tensor whole = device ? (ctx.planning() ? Tensor{nullptr, Dtype::bf16, {160, 512}} : rig.upload(x)) : x.tensor();
      const MatrixView part = MatrixView(whole).columns(128, 192);
      device ? cuda::quantize(ctx, part, out.front()) : cpu::quantize(ctx, part, out.front());
    };
    compare(rig, {spec, spec.row.quantized(), spec.col.quantized(), false}, 160, 192, produce, "columns");
  }
}

// Into columns of a wider matrix, which keeps its others.
TEST(quantize, images_read_back) {
  Rig rig;
  for (const Spec& spec : specs()) {
    if (!spec.row.quantized()) continue;
    for (const ImageSize& extent : image_sizes) {
      for (const Dtype dtype : {Dtype::bf16, Dtype::f32}) {
        const int64_t rows = extent.rows, cols = extent.cols, width = cols + 24;
        const std::string what = std::string(spec.name) + " " + name(dtype).data() + " " + std::to_string(rows) + "x" + std::to_string(cols);
        Host x = matrix(what, Dtype::bf16, rows, cols, false), want = normal("out", dtype, {rows, width}), start = want;
        Arena memory(size_t{1} << 20);
        QuantizedOut on_host{spec.row, {}, alloc_image(memory, spec.row, rows, cols, false), {}, {}};
        const float stored = 3.0f;
        on_host.target.stored_scale = &stored;
        QuantizedOut on_device{spec.row, {}, rig.upload_image(spec.row, rows, cols, false), {}, {}};
        on_device.target.stored_scale = rig.upload_value(stored);
        const Tensor device_x = rig.upload(x), got = rig.upload(start);
        rig.on_host([&](Ctx& ctx) {
          cpu::quantize(ctx, x.tensor(), on_host);
          cpu::dequantize(ctx, on_host.row, MatrixView(want.tensor()).columns(8, cols));
        }, 11, {5, 77});
        rig.on_device([&](Ctx& ctx) {
          cuda::quantize(ctx, device_x, on_device);
          cuda::dequantize(ctx, on_device.row, MatrixView(got).columns(8, cols));
        }, 11, {5, 77});
        expect_same(rig.download(got), want, what);
        rig.reset();
      }
    }
  }
}

}  // namespace
