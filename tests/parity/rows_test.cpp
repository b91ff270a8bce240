// Operators over rows and elements: the same bits where no sum's order differs, else within rounding.
#include <fmt/format.h>

#include <array>

#include "both.h"
#include "cpu/cpu_ops.h"
#include "cuda/cuda_ops.h"
#include "ops/activation.h"
#include "ops/reduce.h"

using namespace parity;

namespace {

QuantSpec blocks_1x128() { return block_spec(Dtype::e4m3, 1, 128); }

TEST(rmsnorm, forward) {
  Rig rig;
  for (const Dtype dtype : both) {
    for (const auto& [rows, cols] : {Size{5, 64}, {3, 1001}, {130, 256}, {2, 4096}}) {
      for (const bool with_delta : {false, true}) {
        Both b(rig);
        const int x = b.input(normal("x", dtype, {rows, cols})), delta = b.input(with_delta ? normal("delta", dtype, {rows, cols}, 0.3) : Host());
        const int gamma = b.input(normal("gamma", dtype, {cols}, 0.2, 1.0)), sum = b.output(dtype, {rows, cols}), y = b.output(dtype, {rows, cols}), rstd = b.output(Dtype::f32, {rows});
        const auto call = [&](auto&& op) {
          return [&, op](Ctx& ctx, const std::vector<Tensor>& t) {
            op(ctx, t[static_cast<size_t>(x)], t[static_cast<size_t>(delta)], t[static_cast<size_t>(gamma)], 1e-5f,
               RmsNormOut{with_delta ? t[static_cast<size_t>(sum)] : Tensor{}, t[static_cast<size_t>(y)], t[static_cast<size_t>(rstd)], {}});
          };
        };
        b.run(call(cpu::rmsnorm_quantize), call(cuda::rmsnorm_quantize));
        const std::string what = label(with_delta ? "norm of a sum" : "norm", dtype, rows, cols);
        if (with_delta) b.same(sum, what + " sum");
        b.close(rstd, 1e-6, what + " rstd");
        b.close(y, 1e-6, what + " y");
      }
    }
  }
}

// The images are those of the y that the device itself wrote; y is also what it writes without images.
TEST(rmsnorm, images_are_those_of_its_values) {
  Rig rig;
  for (const auto& [rows, cols] : {Size{144, 208}, {130, 77}, {256, 256}}) {
    Host x = normal("x", Dtype::bf16, {rows, cols}), gamma = normal("gamma", Dtype::bf16, {cols}, 0.2, 1.0), delta = normal("d", Dtype::bf16, {rows, cols}, 0.5);
    const QuantSpec spec = blocks_1x128();
    const Tensor xt = rig.upload(x), gt = rig.upload(gamma), dt = rig.upload(delta), sum = rig.upload(x, true), y = rig.upload(x, true), alone = rig.upload(x, true),
                 rstd = rig.upload(Host(Dtype::f32, {rows}), true);
    QuantizedOut images{spec, spec, rig.upload_image(spec, rows, cols, false), rig.upload_image(spec, rows, cols, true), {}};
    rig.on_device([&](Ctx& ctx) { cuda::rmsnorm_quantize(ctx, xt, dt, gt, 1e-5f, {sum, y, rstd, images}); });
    rig.on_device([&](Ctx& ctx) { cuda::rmsnorm_quantize(ctx, xt, dt, gt, 1e-5f, {sum, alone, rstd, {}}); });
    Host values = rig.download(y);
    expect_same(rig.download(alone), values, label("values with and without images", Dtype::bf16, rows, cols));
    Arena memory(size_t{4} << 20);
    QuantizedOut want{spec, spec, alloc_image(memory, spec, rows, cols, false), alloc_image(memory, spec, rows, cols, true), {}};
    rig.on_host([&](Ctx& ctx) { cpu::quantize(ctx, values.tensor(), want); });
    expect_same(rig.download_image(images.row, false), plain_image(want.row, false), label("row image", Dtype::bf16, rows, cols));
    expect_same(rig.download_image(images.col, true), plain_image(want.col, true), label("column image", Dtype::bf16, rows, cols));
    rig.reset();
  }
}

TEST(rmsnorm, backward) {
  Rig rig;
  for (const Dtype dtype : both) {
    for (const auto& [rows, cols] : {Size{5, 64}, {33, 1001}, {16, 2048}, {17, 4096}, {2, 8200}}) {
      for (const bool with_residual : {false, true}) {
        Both b(rig);
        const int dy = b.input(normal("dy", dtype, {rows, cols})), s = b.input(normal("s", dtype, {rows, cols}, 2.0)), gamma = b.input(normal("gamma", dtype, {cols}, 0.2, 1.0));
        const int rstd = b.input(normal("rstd", Dtype::f32, {rows}, 0.01, 0.5)), residual = b.input(with_residual ? normal("r", dtype, {rows, cols}) : Host());
        const int dx = b.output(dtype, {rows, cols}), dgamma = b.updated(normal("dgamma", Dtype::f32, {cols}));
        const auto call = [&](auto&& op) {
          return [&, op](Ctx& ctx, const std::vector<Tensor>& t) {
            const auto at = [&](int i) { return t[static_cast<size_t>(i)]; };
            op(ctx, at(dy), at(s), at(gamma), at(rstd), at(residual), at(dx), at(dgamma));
          };
        };
        b.run(call(cpu::rmsnorm_backward), call(cuda::rmsnorm_backward));
        const std::string what = label("norm backward", dtype, rows, cols);
        b.close(dx, 1e-6, what + " dx");
        b.same(dgamma, what + " dgamma");
      }
    }
  }
}

TEST(swiglu, forward_and_backward) {
  Rig rig;
  for (const Dtype dtype : both) {
    for (const auto& [rows, cols] : {Size{5, 64}, {3, 333}, {40, 128}}) {
      Both b(rig);
      const int gate_up = b.input(normal("gu", dtype, {rows, 2 * cols}, 3.0)), dy = b.input(normal("dy", dtype, {rows, cols}));
      const int y = b.output(dtype, {rows, cols}), d_gate_up = b.output(dtype, {rows, 2 * cols});
      const auto call = [&](auto&& forward, auto&& backward) {
        return [&, forward, backward](Ctx& ctx, const std::vector<Tensor>& t) {
          const auto at = [&](int i) { return t[static_cast<size_t>(i)]; };
          forward(ctx, at(gate_up), at(y), QuantizedOut{});
          backward(ctx, at(dy), at(gate_up), at(d_gate_up), QuantizedOut{}, QuantizedOut{});
        };
      };
      b.run(call(cpu::swiglu_quantize, cpu::swiglu_backward), call(cuda::swiglu_quantize, cuda::swiglu_backward));
      b.same(y, label("swiglu", dtype, rows, cols));
      b.same(d_gate_up, label("swiglu backward", dtype, rows, cols));
    }
  }
}

TEST(swiglu, images) {
  Rig rig;
  const int64_t rows = 144, cols = 208;
  Host gate_up = normal("gu", Dtype::bf16, {rows, 2 * cols}, 3.0);
  for (const bool tensorwise : {false, true}) {
    QuantSpec spec = blocks_1x128();
    if (tensorwise) spec.block_rows = spec.block_cols = 0;
    const Tensor in = rig.upload(gate_up);
    QuantizedOut images{spec, spec, rig.upload_image(spec, rows, cols, false), rig.upload_image(spec, rows, cols, true), {}};
    rig.on_device([&](Ctx& ctx) { cuda::swiglu_quantize(ctx, in, {}, images); });
    Arena memory(size_t{4} << 20);
    QuantizedOut want{spec, spec, alloc_image(memory, spec, rows, cols, false), alloc_image(memory, spec, rows, cols, true), {}};
    rig.on_host([&](Ctx& ctx) { cpu::swiglu_quantize(ctx, gate_up.tensor(), {}, want); });
    expect_same(rig.download_image(images.row, false), plain_image(want.row, false), "swiglu row image");
    expect_same(rig.download_image(images.col, true), plain_image(want.col, true), "swiglu column image");
    rig.reset();
  }
}

TEST(rope, forward_and_backward) {
  Rig rig;
  for (const Dtype dtype : both) {
    for (const auto& [d, rotary] : {std::pair<int64_t, int64_t>{64, 64}, {20, 12}, {128, 128}}) {
      for (const bool normed : {false, true}) {
        const HeadGeometry g{4, 2, d, rotary, 1e-6f};
        const int64_t rows = 19, width = g.qkv_width(), rotated = g.heads + g.kv_heads;
        Both b(rig);
        Host positions(Dtype::i32, {rows});
        for (int64_t i = 0; i < rows; ++i) positions.set(i, static_cast<double>(i * 7 % 23));
        const int qkv = b.input(normal("qkv", dtype, {rows, width})), pos = b.input(positions), table = b.input(normal("table", Dtype::f32, {23, rotary}));
        const int gq = b.input(normed ? normal("gq", dtype, {d}, 0.2, 1.0) : Host()), gk = b.input(normed ? normal("gk", dtype, {d}, 0.2, 1.0) : Host());
        const int rstd = b.updated(normed ? Host(Dtype::f32, {rows, rotated}) : Host()), dq = b.updated(normed ? normal("dq", Dtype::f32, {d}) : Host()),
                  dk = b.updated(normed ? normal("dk", Dtype::f32, {d}) : Host());
        const int out = b.output(dtype, {rows, width}), d_out = b.input(normal("d_out", dtype, {rows, width})), d_qkv = b.output(dtype, {rows, width});
        const int inplace = b.updated(normal("qkv", dtype, {rows, width})), back = b.updated(normal("d_out", dtype, {rows, width}));
        const auto call = [&](auto&& forward, auto&& backward) {
          return [&, forward, backward](Ctx& ctx, const std::vector<Tensor>& t) {
            const auto at = [&](int i) { return t[static_cast<size_t>(i)]; };
            const QkNorm norm = normed ? QkNorm{at(gq), at(gk), at(rstd), at(dq), at(dk)} : QkNorm{};
            forward(ctx, at(qkv), at(pos), at(table), g, norm, at(out));
            backward(ctx, at(d_out), at(qkv), at(pos), at(table), g, norm, at(d_qkv));
            if (normed) return;
            forward(ctx, at(inplace), at(pos), at(table), g, norm, at(inplace));
            backward(ctx, at(back), at(back), at(pos), at(table), g, norm, at(back));
          };
        };
        b.run(call(cpu::qk_norm_rope, cpu::qk_norm_rope_backward), call(cuda::qk_norm_rope, cuda::qk_norm_rope_backward));
        const std::string what = label(normed ? "normed rope" : "rope", dtype, d, rotary);
        if (normed) {
          b.close(rstd, 2e-7, what + " rstd");
          b.close(out, 1e-6, what + " forward");
          b.close(d_qkv, 1e-6, what + " backward");
          b.close(dq, 1e-5, what + " dgamma q");
          b.close(dk, 1e-5, what + " dgamma k");
        } else {
          b.same(out, what + " forward");
          b.same(d_qkv, what + " backward");
          b.same(inplace, what + " in place");
          b.same(back, what + " backward in place");
        }
      }
    }
  }
}


TEST(state, adamw_casts_and_column_sums) {
  Rig rig;
  for (const int64_t n : {1, 1000, 4096}) {
    Both b(rig);
    const int master = b.updated(normal("w", Dtype::f32, {n})), m = b.updated(normal("m", Dtype::f32, {n}, 0.1)), grad = b.input(normal("g", Dtype::f32, {n}));
    Host squares = normal("v", Dtype::f32, {n});
    for (int64_t i = 0; i < n; ++i) squares.set(i, squares.at(i) * squares.at(i) * 1e-3);
    const int v = b.updated(squares), working = b.output(Dtype::bf16, {n}), cast = b.output(Dtype::bf16, {n}), total = b.updated(normal("t", Dtype::f32, {n}));
    const int64_t rows = 300;   // so many that FP32 sums of BF16 numbers are not exact
    const int wide = b.input(normal("dy", Dtype::bf16, {rows, n})), sums = b.updated(normal("s", Dtype::f32, {n}));
    const AdamwStep step{3e-4f, 0.9f, 0.95f, 1e-8f, 0.1f, 1.7f, 3.1f};
    const int control = b.input(step_control(0.77f, 0));
    const auto call = [&](auto&& adamw, auto&& cast_weights, auto&& column_sums, auto&& add) {
      return [&, adamw, cast_weights, column_sums, add](Ctx& ctx, const std::vector<Tensor>& t) {
        const auto at = [&](int i) { return t[static_cast<size_t>(i)]; };
        const AdamwUpdate update{{at(master), {}, at(m), at(v), at(grad), at(working), {}}, 0.1f, 0};
        adamw(ctx, std::span(&update, 1), step, static_cast<const StepControl*>(at(control).data));
        cast_weights(ctx, at(grad), at(cast));
        column_sums(ctx, at(wide), at(sums));
        add(ctx, at(grad), at(total));
      };
    };
    b.run(call(cpu::adamw, cpu::cast_weights, cpu::column_sums, cpu::add), call(cuda::adamw, cuda::cast_weights, cuda::column_sums, cuda::add));
    for (const int i : {master, m, v, working, cast, total}) b.same(i, "state of " + std::to_string(n) + ", tensor " + std::to_string(i));
    expect_close(b.got(sums), b.want(sums), 4e-6, "column sums", 1.0, std::sqrt(static_cast<double>(rows)));
  }
}

// Every form of the state, ragged sizes, and skipped steps: the same bits on both backends.
TEST(state, compact_adamw) {
  Rig rig;
  for (const int64_t n : {5, 1000, 4099}) {
    for (const bool halves : {false, true}) {
      for (const Dtype moments : {Dtype::f32, Dtype::bf16}) {
        for (const int32_t skip : {0, 1}) {
          Both b(rig);
          Host upper(Dtype::bf16, {n}), lower(Dtype::u16, {n}), whole = normal("w", Dtype::f32, {n}), second = normal("v", moments, {n});
          for (int64_t i = 0; i < n; ++i) {
            const SplitMaster s = split_master(resolve_tie(whole.at(i)));
            std::memcpy(upper.bytes().data() + 2 * i, &s.weight, 2);
            std::memcpy(lower.bytes().data() + 2 * i, &s.remainder, 2);
            second.set(i, second.at(i) * second.at(i));
          }
          const int master = b.updated(whole), remainder = b.updated(lower), working = b.updated(upper), m = b.updated(normal("m", moments, {n}, 0.1)), v = b.updated(second);
          const int grad = b.input(normal("g", Dtype::f32, {n}));
          const AdamwStep step{3e-2f, 0.9f, 0.95f, 1e-8f, 0.1f, 1.7f, 3.1f};
          const int control = b.input(step_control(0.77f, skip));
          const auto call = [&](auto&& adamw) {
            return [&, adamw](Ctx& ctx, const std::vector<Tensor>& t) {
              const auto at = [&](int i) { return t[static_cast<size_t>(i)]; };
              const Tensor none;
              const AdamwUpdate update{{halves ? none : at(master), halves ? at(remainder) : none, at(m), at(v), at(grad), at(working), {0, 1024, 8192}}, 0.1f, 99};
              adamw(ctx, std::span(&update, 1), step, static_cast<const StepControl*>(at(control).data));
            };
          };
          b.run(call(cpu::adamw), call(cuda::adamw));
          for (const int i : {master, remainder, working, m, v}) {
            b.same(i, fmt::format("{} elements, halves {}, moments {}, skip {}, tensor {}", n, halves, name(moments), skip, i));
          }
        }
      }
    }
  }
}

TEST(state, decisions) {
  Rig rig;
  constexpr double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  for (const double loss : {3.0, nan, -inf}) {
    for (const double odd : {0.125, nan, inf}) {
      for (const int64_t bad : {0, 3}) {
        for (const double clip : {0.0, 0.5, 1e9}) {
          double sum = loss;
          std::array<double, 300> squares{};
          std::array<int64_t, 777> counts{};
          for (size_t i = 0; i < squares.size(); ++i) squares[i] = std::sqrt(static_cast<double>(i + 1));
          squares[299] = odd;
          counts[700] = bad;
          StepOutcome want{};
          const StepInputs on_host{&sum, squares.data(), 300, counts.data(), 777, clip};
          rig.on_host([&](Ctx& ctx) { cpu::decide_step(ctx, on_host, &want); });
          StepOutcome* outcome = rig.upload_value(StepOutcome{});
          const StepInputs on_device{rig.upload_value(sum), rig.upload_value(squares)->data(), 300, rig.upload_value(counts)->data(), 777, clip};
          rig.on_device([&](Ctx& ctx) { cuda::decide_step(ctx, on_device, outcome); });
          const StepOutcome got = rig.download_value(outcome);
          EXPECT_EQ(got.control.skip, want.control.skip);
          EXPECT_EQ(got.nonfinite, want.nonfinite);
          if (std::isfinite(odd)) {
            EXPECT_EQ(got.grad_norm, want.grad_norm);
            EXPECT_EQ(got.control.grad_scale, want.control.grad_scale);
          }
          rig.reset();
        }
      }
    }
  }
}

TEST(state, sums) {
  Rig rig;
  for (const int64_t n : {1, 1000, 70000}) {
    Host x = normal("sum", Dtype::f32, {n}, 1.0, 0.25);
    const Tensor on_device = rig.upload(x);
    double want[2] = {}, got[2] = {}, again[2] = {};
    rig.on_host([&](Ctx& ctx) {
      cpu::sum(ctx, x.tensor(), &want[0]);
      const Tensor t = x.tensor();
      cpu::sum_squares(ctx, {&t, 1}, &want[1]);
    });
    for (double* result : {got, again}) {
      std::array<double, 2>* sums = rig.upload_value(std::array<double, 2>{});
      rig.on_device([&](Ctx& ctx) {
        cuda::sum(ctx, on_device, &(*sums)[0]);
        cuda::sum_squares(ctx, {&on_device, 1}, &(*sums)[1]);
      });
      const auto values = rig.download_value(sums);
      std::copy(values.begin(), values.end(), result);
    }
    for (int i = 0; i < 2; ++i) {
      EXPECT_NEAR(got[i], want[i], 1e-12 * want[1]) << n;
      EXPECT_EQ(got[i], again[i]) << n;
    }
    rig.reset();
  }
}

TEST(state, scales_as_codes) {
  Rig rig;
  for (const int64_t n : {1, 255, 1000}) {
    Host scales(Dtype::f32, {n});
    for (int64_t i = 0; i < n; ++i) scales.set(i, std::ldexp(1.0, static_cast<int>(i % 255) - 127));
    Both b(rig);
    const int values = b.input(scales), codes = b.output(Dtype::e8m0, {n}), back = b.output(Dtype::f32, {n});
    const auto call = [&](auto&& narrow, auto&& widen) {
      return [&, narrow, widen](Ctx& ctx, const std::vector<Tensor>& t) {
        narrow(ctx, t[static_cast<size_t>(values)], t[static_cast<size_t>(codes)]);
        widen(ctx, t[static_cast<size_t>(codes)], t[static_cast<size_t>(back)]);
      };
    };
    b.run(call(cpu::narrow_scales, cpu::widen_scales), call(cuda::narrow_scales, cuda::widen_scales));
    b.same(codes, "codes " + std::to_string(n));
    b.same(back, "scales " + std::to_string(n));
  }
}

}  // namespace
