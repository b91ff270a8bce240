// rmsnorm_quantize and rmsnorm_backward against double.
#include "ops/norm.h"

#include "images.h"

using namespace cpu_test;

namespace {

constexpr float eps = 1e-5f;
const Shape norm_shapes[] = {{1, 8}, {37, 96}, {20, 100}, {5, 3}};

struct NormReference {
  std::vector<double> y, rstd;
};

NormReference forward(const Buffer& s, const Buffer& gamma) {
  NormReference out;
  const int64_t h = s.cols();
  for (int64_t r = 0; r < s.elements() / h; ++r) {
    double squares = 0;
    for (int64_t i = 0; i < h; ++i) squares += s.at(r * h + i) * s.at(r * h + i);
    const double rstd = 1.0 / std::sqrt(squares / static_cast<double>(h) + static_cast<double>(eps));
    out.rstd.push_back(rstd);
    for (int64_t i = 0; i < h; ++i) out.y.push_back(s.at(r * h + i) * rstd * gamma.at(i));
  }
  return out;
}

TEST(rmsnorm, forward_with_and_without_the_residual_addition) {
  for (const Shape& shape : norm_shapes) {
    for (Dtype dtype : both_dtypes) {
      for (bool residual : {false, true}) {
        Buffer x = normal("x", dtype, shape, 2.0), delta = normal("delta", dtype, shape), gamma = normal("gamma", dtype, {shape[1]}, 0.2, 1.0);
        const Outputs out = run({Buffer(dtype, shape), Buffer(dtype, shape), Buffer(Dtype::f32, {shape[0]})}, [&](Ctx& ctx, Outputs& o) {
          RmsNormOut to;
          if (residual) to.sum = o[0].tensor();
          to.y = o[1].tensor();
          to.rstd = o[2].tensor();
          ops::rmsnorm_quantize(ctx, x.tensor(), residual ? delta.tensor() : Tensor{}, gamma.tensor(), eps, to);
        });
        Buffer s = x;
        if (residual) {
          for (int64_t i = 0; i < x.elements(); ++i) s.set(i, static_cast<double>(x.f(i) + delta.f(i)));
          EXPECT_EQ(out[0].bytes(), s.bytes());
        }
        const NormReference want = forward(s, gamma);
        expect_close(out[1], want.y, 1e-6, "y");
        expect_close(out[2], want.rstd, 1e-6, "rstd");
      }
    }
  }
}

TEST(rmsnorm, images_are_made_from_the_rounded_output) {
  for (const QuantSpec& spec :
       {block_spec(Dtype::e4m3, 0, 0), block_spec(Dtype::e4m3, 1, 32, ScaleKind::e8m0), block_spec(Dtype::e4m3, 1, 0, ScaleKind::pow2)}) {
    for (bool wants_y : {false, true}) {
      for (bool wants_row : {false, true}) {
        Buffer x = normal("x", Dtype::bf16, {37, 96}, 2.0), gamma = normal("gamma", Dtype::bf16, {96}, 0.2, 1.0);
        Image row(spec, 37, 96, false), col(spec, 37, 96, true);
        const Outputs out = run({Buffer(Dtype::bf16, {37, 96}), row.data, row.scale_inv, col.data, col.scale_inv}, [&](Ctx& ctx, Outputs& o) {
          RmsNormOut to;
          if (wants_y) to.y = o[0].tensor();
          to.images.row_spec = to.images.col_spec = spec;
          if (wants_row) {
            to.images.row = row.operand();
            to.images.row.data.data = o[1].tensor().data;
            to.images.row.scale_inv = o[2].tensor();
          }
          to.images.col = col.operand();
          to.images.col.data.data = o[3].tensor().data;
          to.images.col.scale_inv = o[4].tensor();
          ops::rmsnorm_quantize(ctx, x.tensor(), {}, gamma.tensor(), eps, to);
        });
        Machine m;
        Buffer y(Dtype::bf16, {37, 96});
        RmsNormOut only_y;
        only_y.y = y.tensor();
        ops::rmsnorm_quantize(m.ctx, x.tensor(), {}, gamma.tensor(), eps, only_y);
        if (wants_y) {
          EXPECT_EQ(out[0].bytes(), y.bytes());
        }
        const Image want_row = expected_image(y, 0, 37, 96, spec, false), want_col = expected_image(y, 0, 37, 96, spec, true);
        if (wants_row) {
          EXPECT_EQ(out[1].bytes(), want_row.data.bytes());
          EXPECT_EQ(out[2].bytes(), want_row.scale_inv.bytes());
        }
        EXPECT_EQ(out[3].bytes(), want_col.data.bytes());
        EXPECT_EQ(out[4].bytes(), want_col.scale_inv.bytes());
      }
    }
  }
}

TEST(rmsnorm, backward) {
  for (const Shape& shape : norm_shapes) {
    for (Dtype dtype : both_dtypes) {
      for (bool residual : {false, true}) {
        const int64_t rows = shape[0], h = shape[1];
        Buffer s = normal("s", dtype, shape, 2.0), dy = normal("dy", dtype, shape), gamma = normal("gamma", dtype, {h}, 0.2, 1.0),
               res = normal("res", dtype, shape);
        Buffer rstd(Dtype::f32, {rows}), dgamma0 = normal("dgamma", Dtype::f32, {h});
        const NormReference f = forward(s, gamma);
        for (int64_t r = 0; r < rows; ++r) rstd.set(r, f.rstd[static_cast<size_t>(r)]);
        // The residual's gradient comes in the buffer that the result goes to.
        const Outputs out = run({res, dgamma0}, [&](Ctx& ctx, Outputs& o) {
          ops::rmsnorm_backward(ctx, dy.tensor(), s.tensor(), gamma.tensor(), rstd.tensor(), residual ? o[0].tensor() : Tensor{}, o[0].tensor(),
                                o[1].tensor());
        });
        std::vector<double> dx(static_cast<size_t>(rows * h)), dgamma = dgamma0.values();
        for (int64_t r = 0; r < rows; ++r) {
          const double rs = f.rstd[static_cast<size_t>(r)];
          double dot = 0;
          for (int64_t i = 0; i < h; ++i) dot += dy.at(r * h + i) * gamma.at(i) * s.at(r * h + i);
          for (int64_t i = 0; i < h; ++i) {
            const int64_t at = r * h + i;
            dx[static_cast<size_t>(at)] =
                rs * dy.at(at) * gamma.at(i) - s.at(at) * rs * rs * rs * dot / static_cast<double>(h) + (residual ? res.at(at) : 0.0);
            dgamma[static_cast<size_t>(i)] += dy.at(at) * s.at(at) * rs;
          }
        }
        expect_close(out[0], dx, 1e-6, "dx");
        expect_close(out[1], dgamma, 2e-6, "dgamma");
      }
    }
  }
}

TEST(rmsnorm, gradients_by_directional_derivatives) {
  const Shape shape{9, 24};
  Buffer x = normal("x", Dtype::f32, shape), delta = normal("delta", Dtype::f32, shape), gamma = normal("gamma", Dtype::f32, {24}, 0.2, 1.0);
  Buffer y(Dtype::f32, shape), sum(Dtype::f32, shape), rstd(Dtype::f32, {9}), c = normal("c", Dtype::f32, shape), e = normal("e", Dtype::f32, shape);
  Machine m;
  // Both outputs enter the loss: y through the norm, the sum through the residual stream.
  const auto loss = [&] {
    RmsNormOut to;
    to.sum = sum.tensor();
    to.y = y.tensor();
    to.rstd = rstd.tensor();
    ops::rmsnorm_quantize(m.ctx, x.tensor(), delta.tensor(), gamma.tensor(), eps, to);
    return weighted_sum(y, c) + weighted_sum(sum, e);
  };
  loss();
  Buffer dx(Dtype::f32, shape), dgamma(Dtype::f32, {24});
  ops::rmsnorm_backward(m.ctx, c.tensor(), sum.tensor(), gamma.tensor(), rstd.tensor(), e.tensor(), dx.tensor(), dgamma.tensor());
  expect_gradient({&x, &delta, &gamma}, {dx, dx, dgamma}, loss);
}

TEST(rmsnorm, zero_rows_and_non_finite_rows) {
  Machine m;
  Buffer x(Dtype::f32, {3, 16}), gamma(Dtype::f32, {16}), y(Dtype::f32, {3, 16});
  for (int64_t i = 0; i < 16; ++i) gamma.set(i, 1.0);
  x.set(16, std::numeric_limits<double>::quiet_NaN());
  for (int64_t i = 32; i < 48; ++i) x.set(i, 1.0);
  RmsNormOut to;
  to.y = y.tensor();
  ops::rmsnorm_quantize(m.ctx, x.tensor(), {}, gamma.tensor(), eps, to);
  for (int64_t i = 0; i < 16; ++i) {
    EXPECT_EQ(y.at(i), 0.0);
    EXPECT_TRUE(std::isnan(y.at(16 + i)));
    EXPECT_NEAR(y.at(32 + i), 1.0, 1e-5);
  }
}

TEST(rmsnorm, a_residual_addition_needs_a_place_for_its_sum) {
  Machine m;
  Buffer x = normal("x", Dtype::bf16, {4, 8}), gamma = normal("g", Dtype::bf16, {8}), y(Dtype::bf16, {4, 8});
  RmsNormOut to;
  to.y = y.tensor();
  EXPECT_THROW(ops::rmsnorm_quantize(m.ctx, x.tensor(), x.tensor(), gamma.tensor(), eps, to), Error);
  Buffer short_gamma = normal("g", Dtype::bf16, {7});
  EXPECT_THROW(ops::rmsnorm_quantize(m.ctx, x.tensor(), {}, short_gamma.tensor(), eps, to), Error);
}

}  // namespace
