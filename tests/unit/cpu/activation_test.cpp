// SwiGLU and the exponential under it, against double.
#include "ops/activation.h"

#include "cpu/simd.h"
#include "images.h"

using namespace cpu_test;

namespace {

const Shape gated_shapes[] = {{1, 2}, {19, 66}, {40, 256}, {3, 1000}};  // [T, 2 I]

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

TEST(fast_exp, relative_error_over_the_whole_range) {
  double worst = 0;
  // Steps of 7e-4 from -87 to 88, and random points between them.
  const Philox rng(1, RngPurpose::init, "exp");
  for (int64_t i = 0; i <= 250000; ++i) {
    const double step = 175.0 / 250000.0;
    for (double offset : {0.0, static_cast<double>(rng.word(static_cast<uint64_t>(i))) * 0x1p-32}) {
      const auto x = static_cast<float>(std::min(88.0, -87.0 + (static_cast<double>(i) + offset) * step));
      const double want = std::exp(static_cast<double>(x));
      worst = std::max(worst, std::fabs(fast_exp(x) - want) / want);
    }
  }
  EXPECT_LT(worst, 3e-7);
  EXPECT_GT(worst, 0.0);
}

TEST(fast_exp, ends_of_the_range) {
  constexpr float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(fast_exp(0.0f), 1.0f);
  for (float x : {std::nextafter(-87.0f, -inf), -100.0f, -1e30f, -inf}) EXPECT_EQ(fast_exp(x), 0.0f) << x;
  EXPECT_GT(fast_exp(-87.0f), 1.1e-38f);
  for (float x : {88.5f, 1e30f, inf}) EXPECT_EQ(fast_exp(x), fast_exp(88.0f)) << x;
  EXPECT_TRUE(std::isnan(fast_exp(std::numeric_limits<float>::quiet_NaN())));
  EXPECT_TRUE(std::isnan(fast_exp(-std::numeric_limits<float>::quiet_NaN())));
}

TEST(swiglu, forward) {
  for (const Shape& shape : gated_shapes) {
    for (Dtype dtype : both_dtypes) {
      const int64_t rows = shape[0], n = shape[1] / 2;
      Buffer gate_up = normal("gate_up", dtype, shape, 3.0);
      const Outputs out =
          run({Buffer(dtype, {rows, n})}, [&](Ctx& ctx, Outputs& o) { ops::swiglu_quantize(ctx, gate_up.tensor(), o[0].tensor(), {}); });
      std::vector<double> want;
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t i = 0; i < n; ++i) {
          const double g = gate_up.at(r * 2 * n + i);
          want.push_back(g * sigmoid(g) * gate_up.at(r * 2 * n + n + i));
        }
      }
      expect_close(out[0], want, 1e-6, "y");
    }
  }
}

TEST(swiglu, backward) {
  for (const Shape& shape : gated_shapes) {
    for (Dtype dtype : both_dtypes) {
      const int64_t rows = shape[0], n = shape[1] / 2;
      Buffer gate_up = normal("gate_up", dtype, shape, 3.0), dy = normal("dy", dtype, {rows, n});
      const Outputs out =
          run({Buffer(dtype, shape)}, [&](Ctx& ctx, Outputs& o) { ops::swiglu_backward(ctx, dy.tensor(), gate_up.tensor(), o[0].tensor(), {}, {}); });
      std::vector<double> want(static_cast<size_t>(rows * 2 * n));
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t i = 0; i < n; ++i) {
          const double g = gate_up.at(r * 2 * n + i), u = gate_up.at(r * 2 * n + n + i), d = dy.at(r * n + i), s = sigmoid(g);
          want[static_cast<size_t>(r * 2 * n + i)] = d * u * s * (1.0 + g * (1.0 - s));
          want[static_cast<size_t>(r * 2 * n + n + i)] = d * g * s;
        }
      }
      expect_close(out[0], want, 1e-6, "d_gate_up");
    }
  }
}

TEST(swiglu, images_are_made_from_the_rounded_output) {
  const QuantSpec spec = block_spec(Dtype::e4m3, 1, 128, ScaleKind::pow2);
  for (bool wants_y : {false, true}) {
    Buffer gate_up = normal("gate_up", Dtype::bf16, {40, 400});
    Image row(spec, 40, 200, false), col(spec, 40, 200, true);
    const Outputs out = run({Buffer(Dtype::bf16, {40, 200}), row.data, row.scale_inv, col.data, col.scale_inv}, [&](Ctx& ctx, Outputs& o) {
      QuantizedOut to{spec, spec, row.operand(), col.operand(), {}};
      to.row.data.data = o[1].tensor().data;
      to.row.scale_inv = o[2].tensor();
      to.col.data.data = o[3].tensor().data;
      to.col.scale_inv = o[4].tensor();
      ops::swiglu_quantize(ctx, gate_up.tensor(), wants_y ? o[0].tensor() : Tensor{}, to);
    });
    Machine m;
    Buffer y(Dtype::bf16, {40, 200});
    ops::swiglu_quantize(m.ctx, gate_up.tensor(), y.tensor(), {});
    if (wants_y) {
      EXPECT_EQ(out[0].bytes(), y.bytes());
    }
    const Image want_row = expected_image(y, 0, 40, 200, spec, false), want_col = expected_image(y, 0, 40, 200, spec, true);
    EXPECT_EQ(out[1].bytes(), want_row.data.bytes());
    EXPECT_EQ(out[2].bytes(), want_row.scale_inv.bytes());
    EXPECT_EQ(out[3].bytes(), want_col.data.bytes());
    EXPECT_EQ(out[4].bytes(), want_col.scale_inv.bytes());
  }
}

TEST(swiglu, saturated_gates_give_their_limits) {
  Machine m;
  const double gates[] = {-1e4, -100.0, 100.0, 1e4}, want[] = {0.0, 0.0, 200.0, 2e4};
  Buffer gate_up(Dtype::f32, {1, 8}), y(Dtype::f32, {1, 4}), dy(Dtype::f32, {1, 4}), d(Dtype::f32, {1, 8});
  for (int64_t i = 0; i < 4; ++i) {
    gate_up.set(i, gates[i]);
    gate_up.set(4 + i, 2.0);
    dy.set(i, 1.0);
  }
  ops::swiglu_quantize(m.ctx, gate_up.tensor(), y.tensor(), {});
  ops::swiglu_backward(m.ctx, dy.tensor(), gate_up.tensor(), d.tensor(), {}, {});
  for (int64_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(y.at(i), want[i], 1e-30) << gates[i];
    EXPECT_NEAR(d.at(i), i < 2 ? 0.0 : 2.0, 1e-30) << gates[i];
    EXPECT_NEAR(d.at(4 + i), want[i] / 2.0, 1e-30) << gates[i];
  }
}

TEST(swiglu, gradients_by_directional_derivatives) {
  Machine m;
  Buffer gate_up = normal("gate_up", Dtype::f32, {7, 30}), y(Dtype::f32, {7, 15}), c = normal("c", Dtype::f32, {7, 15}), d(Dtype::f32, {7, 30});
  ops::swiglu_backward(m.ctx, c.tensor(), gate_up.tensor(), d.tensor(), {}, {});
  expect_gradient({&gate_up}, {d}, [&] {
    ops::swiglu_quantize(m.ctx, gate_up.tensor(), y.tensor(), {});
    return weighted_sum(y, c);
  });
}

}  // namespace
