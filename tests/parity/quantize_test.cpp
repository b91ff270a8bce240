// Images of every recipe: the same codes, scales, amaxes and counts from both backends; statistics within rounding of their sums.
#include "cpu/cpu_ops.h"
#include "cuda/cuda_ops.h"
#include "images.h"

#include <fmt/format.h>

#include <algorithm>

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

TEST(quantize, given_amaxes_of_every_recipe) {
  Rig rig;
  // For both images; without statistics, when no maximum of the matrix is needed at all; for one image of two.
  enum class Way { both, without_statistics, column_alone, row_alone };
  for (const Spec& spec : specs()) {
    const Case c{.spec = spec, .row = spec.row.quantized(), .col = spec.col.quantized(), .health = false, .given = true};
    if (!can_give(c, 32, 48)) continue;
    for (const ImageSize& extent : image_sizes) {
      const int64_t rows = extent.rows, cols = extent.cols;   // Clang 14 captures no structured bindings
      const std::string size = fmt::format("{}x{}", rows, cols);
      Host x = matrix(size, Dtype::bf16, rows, cols, rows == 32);
      const auto check = [&](const Case& with, Way way) {
        const Producer produce = [&](Ctx& ctx, bool device, const std::vector<QuantizedOut>& out) {
          QuantizedOut q = out.front();
          if (way == Way::without_statistics) q.target.amax = nullptr, q.target.nonfinite = nullptr;
          if (way == Way::column_alone) q.row_amax = {};
          if (way == Way::row_alone) q.col_amax = {};
          if (device) {
            cuda::quantize(ctx, ctx.planning() ? MatrixView(Tensor{nullptr, Dtype::bf16, {rows, cols}}) : MatrixView(rig.upload(x)), q);
          } else {
            cpu::quantize(ctx, x.tensor(), q);
          }
        };
        compare(rig, with, rows, cols, produce, fmt::format("{} way {}", size, static_cast<int>(way)));
      };
      check(c, Way::both);
      if (rows != 32 && rows != 3) continue;
      Case health = c;
      health.health = true;
      check(health, Way::both);
      check(health, Way::without_statistics);
      for (const Way way : {Way::without_statistics, Way::column_alone, Way::row_alone}) check(c, way);
    }
  }
}

TEST(quantize, shared_amaxes_of_every_recipe) {
  Rig rig;
  std::vector<QuantSpec> seen;
  for (const Spec& spec : specs()) {
    for (const QuantSpec& given : {spec.row, spec.col}) {
      // What matters: blocks, the scales' kind and the transform.
      QuantSpec s = block_spec(Dtype::e4m3, given.block_rows, given.block_cols, given.scale == ScaleKind::ue4m3 ? given.scale : ScaleKind::fp32);
      s.hadamard = given.hadamard;
      if (shared_amax_count(s, 1, 1, false) == 0 || std::find(seen.begin(), seen.end(), s) != seen.end()) continue;
      seen.push_back(s);
      for (const ImageSize& extent : {ImageSize{144, 208}, {128, 256}, {130, 77}, {1, 1}, {3, 130}, {0, 40}, {40, 0}}) {
        for (const bool column : {false, true}) {
          const int64_t rows = extent.rows, cols = extent.cols, n = shared_amax_count(s, rows, cols, column);
          if (n == 0) continue;
          const Dtype dtype = rows == 3 ? Dtype::f32 : Dtype::bf16;
          Host x = matrix("shared", dtype, rows, cols + 8, rows == 130 || rows == 128), want(Dtype::f32, {n});   // rows lie apart
          rig.on_host([&](Ctx& ctx) { cpu::shared_amaxes(ctx, MatrixView(x.tensor()).columns(8, cols), s, column, want.tensor()); });
          for (int round = 0; round < 2; ++round) {
            const Tensor on_device = rig.upload(x), got = rig.upload(want, true);
            rig.on_device([&](Ctx& ctx) { cuda::shared_amaxes(ctx, MatrixView(on_device).columns(8, cols), s, column, got); });
            expect_same(rig.download(got), want, fmt::format("shared amaxes, blocks {}x{} {}, {}x{}", s.block_rows, s.block_cols, column ? "column" : "row", rows, cols));
          }
          rig.reset();
        }
      }
    }
  }
  EXPECT_GE(seen.size(), 4u);   // tensors, rows, two-level scales with and without a transform
}

// Random numbers of a part of a matrix.
TEST(quantize, places_of_parts) {
  Rig rig;
  for (const Spec& spec : specs()) {
    if (spec.row.rounding != Rounding::stochastic) continue;
    const int64_t rows = 144, cols = 208;
    Host x = matrix("part", Dtype::bf16, rows, cols, false);
    const Producer produce = [&](Ctx& ctx, bool device, const std::vector<QuantizedOut>& out) {
      QuantizedOut q = out.front();
      q.target.place = {(int64_t{1} << 33) + 16, 48, 1000};
      if (device) {
        cuda::quantize(ctx, ctx.planning() ? MatrixView(Tensor{nullptr, Dtype::bf16, {rows, cols}}) : MatrixView(rig.upload(x)), q);
      } else {
        cpu::quantize(ctx, x.tensor(), q);
      }
    };
    compare(rig, {spec, true, true, false}, rows, cols, produce, "part");
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
