// quantize: codes, scales, amax and counts against the scalar numerics, for blocks of every shape.
#include <limits>

#include "images.h"

using namespace cpu_test;

namespace {

constexpr float inf = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

QuantSpec rowwise_spec(Dtype format) {
  QuantSpec s = block_spec(format, 1, 0, ScaleKind::pow2);
  s.amax_epsilon = 1e-12f;
  s.fp64_divide = true;
  return s;
}
QuantSpec blockwise_spec(int64_t rows) {
  QuantSpec s = block_spec(Dtype::e4m3, rows, 128, ScaleKind::pow2);
  s.overflow_scale = 3.38953139e+38f;
  return s;
}

QuantSpec hadamard_spec(Dtype format = Dtype::e2m1, int64_t cols = 16, ScaleKind scale = ScaleKind::ue4m3) {
  QuantSpec s = block_spec(format, 1, cols, scale);
  s.hadamard = true;
  return s;
}

struct SpecCase {
  const char* name;
  QuantSpec spec;
};
const SpecCase spec_cases[] = {
    {"tensor e4m3", block_spec(Dtype::e4m3, 0, 0)},
    {"tensor e5m2 pow2", block_spec(Dtype::e5m2, 0, 0, ScaleKind::pow2)},
    {"tensor e2m1", block_spec(Dtype::e2m1, 0, 0)},
    {"rowwise", rowwise_spec(Dtype::e4m3)},
    {"rowwise e5m2", rowwise_spec(Dtype::e5m2)},
    {"1x128", blockwise_spec(1)},
    {"1x128 fp32", block_spec(Dtype::e4m3, 1, 128)},
    {"128x128", blockwise_spec(128)},
    {"1x32 e8m0", block_spec(Dtype::e4m3, 1, 32, ScaleKind::e8m0)},
    {"1x32 e8m0 e5m2", block_spec(Dtype::e5m2, 1, 32, ScaleKind::e8m0)},
    {"32x32", block_spec(Dtype::e4m3, 32, 32)},
    {"1x7 e3m2", block_spec(Dtype::e3m2, 1, 7)},
    {"3x5 e2m3", block_spec(Dtype::e2m3, 3, 5, ScaleKind::pow2)},
    {"0x64", block_spec(Dtype::e4m3, 0, 64)},
    {"64x0", block_spec(Dtype::e4m3, 64, 0)},
    {"1x1", block_spec(Dtype::e4m3, 1, 1)},
    {"100x40", block_spec(Dtype::e4m3, 100, 40)},
    {"1x64 pow2", block_spec(Dtype::e4m3, 1, 64, ScaleKind::pow2)},
    {"64x64", block_spec(Dtype::e4m3, 64, 64)},
    {"1x256", block_spec(Dtype::e5m2, 1, 256)},
    {"256x256", block_spec(Dtype::e4m3, 256, 256, ScaleKind::pow2)},
    {"1x16 ue4m3", block_spec(Dtype::e2m1, 1, 16, ScaleKind::ue4m3)},
    {"16x16 ue4m3", block_spec(Dtype::e2m1, 16, 16, ScaleKind::ue4m3)},
    {"1x16 ue4m3 hadamard", hadamard_spec()},
    {"1x32 e2m3 hadamard", hadamard_spec(Dtype::e2m3, 32, ScaleKind::e8m0)},
};
const Shape matrix_shapes[] = {{1, 1}, {5, 7}, {32, 32}, {33, 130}, {129, 257}, {64, 384}, {3, 1000}, {300, 5}, {65, 1}};

// Magnitudes over 40 binades, with a block of zeros, FP32 subnormals and values near the end of the range.
Buffer wide_range(Dtype dtype, int64_t rows, int64_t width) {
  Buffer x(dtype, {rows, width});
  const Philox rng(5, RngPurpose::init, "wide");
  for (int64_t i = 0; i < x.elements(); ++i) {
    const int64_t r = i / width, c = i % width;
    const auto e = static_cast<uint64_t>(i);
    double v = rng.normal(e) * std::exp2(static_cast<double>(rng.word(e) % 41) - 20.0);
    if (r % 32 < 4 && c % 128 < 40) v = 0.0;
    if (r % 50 == 49) v *= 1e-38;
    if (r % 70 == 69) v *= 1e30;
    x.set(i, v);
  }
  return x;
}

void expect_equal(const Image& got, const Image& want, const std::string& what) {
  EXPECT_EQ(got.scale_inv.bytes(), want.scale_inv.bytes()) << what << ": scales";
  EXPECT_EQ(got.data.bytes(), want.data.bytes()) << what << ": codes";
}

TEST(quantize, codes_and_scales_equal_the_scalar_numerics) {
  for (const SpecCase& c : spec_cases) {
    for (const Shape& shape : matrix_shapes) {
      for (Dtype dtype : both_dtypes) {
        const int64_t rows = shape[0], cols = shape[1];
        Buffer x = wide_range(dtype, rows, cols + 5);  // rows lie apart: a column range of a wider matrix
        Image row(c.spec, rows, cols, false), col(c.spec, rows, cols, true);
        const std::string what = std::string(c.name) + " " + to_string(shape) + " " + std::string(name(dtype));
        const Outputs out = run({row.data, row.scale_inv, col.data, col.scale_inv}, [&](Ctx& ctx, Outputs& o) {
          Image r = row, k = col;
          QuantizedOut q{c.spec, c.spec, r.operand(), k.operand(), {}};
          q.row.data = o[0].tensor();
          q.row.scale_inv = o[1].tensor();
          q.col.data = o[2].tensor();
          q.col.scale_inv = o[3].tensor();
          ops::quantize(ctx, x.columns(3, cols), q);
        });
        row.data = out[0];
        row.scale_inv = out[1];
        col.data = out[2];
        col.scale_inv = out[3];
        expect_equal(row, expected_image(x, 3, rows, cols, c.spec, false), what + " row");
        expect_equal(col, expected_image(x, 3, rows, cols, c.spec, true), what + " column");
        if (HasFailure()) return;
      }
    }
  }
}

TEST(quantize, square_images_are_their_own_transposes) {
  Machine m;
  Buffer x = wide_range(Dtype::bf16, 129, 257);
  for (const QuantSpec& s : {block_spec(Dtype::e4m3, 0, 0), blockwise_spec(128), block_spec(Dtype::e4m3, 32, 32)}) {
    const Image row = quantized(m.ctx, x.tensor(), s, false), col = quantized(m.ctx, x.tensor(), s, true);
    expect_equal(row, col, "square");
  }
  const QuantSpec one_dimensional = blockwise_spec(1);
  EXPECT_NE(quantized(m.ctx, x.tensor(), one_dimensional, false).data.bytes(), quantized(m.ctx, x.tensor(), one_dimensional, true).data.bytes());
}

TEST(quantize, delayed_scale_is_taken_as_given) {
  Machine m;
  for (Dtype dtype : both_dtypes) {
    Buffer x = normal("delayed", dtype, {37, 53}, 30.0);
    for (float scale : {1.0f, 3.7f, 0x1p-127f, 448.0f}) {
      QuantSpec s = block_spec(Dtype::e4m3, 0, 0);
      s.scaling = Scaling::delayed;
      float amax = 0;
      QuantTarget target;
      target.stored_scale = &scale;
      target.amax = &amax;
      const Image got = quantized(m.ctx, x.tensor(), s, false, target);
      expect_equal(got, expected_image(x, 0, 37, 53, s, false, scale), std::to_string(scale));
      float want = 0;
      for (int64_t i = 0; i < x.elements(); ++i) want = std::max(want, std::fabs(x.f(i)));
      EXPECT_EQ(amax, want);  // of the unscaled values
    }
  }
}

TEST(quantize, amax_is_a_running_maximum) {
  Machine m;
  for (const SpecCase& c : spec_cases) {
    if (c.spec.hadamard) continue;  // its amax is that of transformed values
    float amax = 0;
    int64_t nonfinite = 0;
    QuantTarget target;
    target.amax = &amax;
    target.nonfinite = &nonfinite;
    Buffer small = normal("small", Dtype::bf16, {40, 150}, 1.0), large = small;
    large.set(4321, -1000.0);
    quantized(m.ctx, large.tensor(), c.spec, false, target);
    EXPECT_EQ(amax, 1000.0f) << c.name;
    quantized(m.ctx, small.tensor(), c.spec, true, target);
    EXPECT_EQ(amax, 1000.0f) << c.name;  // micro-batches merge by maximum
    EXPECT_EQ(nonfinite, 0) << c.name;
  }
}

TEST(quantize, non_finite_elements_are_counted_and_make_amax_infinite) {
  Machine m;
  for (const SpecCase& c : spec_cases) {
    for (Dtype dtype : both_dtypes) {
      Buffer x = normal("bad", dtype, {70, 140});
      const std::pair<int64_t, float> bad[] = {{0, nan}, {139, inf}, {140 * 33 + 64, -inf}, {140 * 69 + 139, nan}, {140 * 69, inf}};
      for (const auto& [i, v] : bad) x.set(i, v);
      float amax = 2.0f;
      int64_t nonfinite = 10;
      Image row(c.spec, 70, 140, false), col(c.spec, 70, 140, true);
      QuantizedOut out{c.spec, c.spec, row.operand(), col.operand(), {}};
      out.target.amax = &amax;
      out.target.nonfinite = &nonfinite;
      ops::quantize(m.ctx, x.tensor(), out);
      EXPECT_EQ(amax, inf) << c.name;
      EXPECT_EQ(nonfinite, 15) << c.name;  // once each, although both images were made
      expect_equal(row, expected_image(x, 0, 70, 140, c.spec, false), std::string(c.name) + " row");
      expect_equal(col, expected_image(x, 0, 70, 140, c.spec, true), std::string(c.name) + " column");
    }
  }
}

TEST(quantize, statistics_are_optional_and_an_empty_matrix_is_legal) {
  Machine m;
  float amax = 1.0f;
  int64_t nonfinite = 0;
  QuantTarget target;
  target.amax = &amax;
  target.nonfinite = &nonfinite;
  for (const SpecCase& c : spec_cases) {
    Buffer empty(Dtype::bf16, {0, 64});
    EXPECT_NO_THROW(quantized(m.ctx, empty.tensor(), c.spec, true, target)) << c.name;
  }
  EXPECT_EQ(amax, 1.0f);
  EXPECT_EQ(nonfinite, 0);
}

TEST(quantize, wrong_images_are_internal_errors) {
  Machine m;
  Buffer x = normal("x", Dtype::bf16, {8, 32});
  const auto attempt = [&](const QuantSpec& spec, const std::function<void(QuantizedOut&)>& spoil) {
    Image image(spec, 8, 32, false);
    QuantizedOut out;
    out.row_spec = spec;
    out.row = image.operand();
    spoil(out);
    ops::quantize(m.ctx, x.tensor(), out);
  };
  const QuantSpec s = block_spec(Dtype::e4m3, 1, 16);
  EXPECT_NO_THROW(attempt(s, [](QuantizedOut&) {}));
  EXPECT_THROW(attempt(s, [](QuantizedOut& o) { o.row.data.dtype = Dtype::e5m2; }), Error);
  EXPECT_THROW(attempt(s, [](QuantizedOut& o) { o.row.data.rows = 7; }), Error);
  EXPECT_THROW(attempt(s, [](QuantizedOut& o) { o.row.scale_inv.shape = {8, 3}; }), Error);
  EXPECT_THROW(attempt(s, [](QuantizedOut& o) { o.row_spec.format = Dtype::bf16; }), Error);
  QuantSpec delayed = block_spec(Dtype::e4m3, 0, 0);
  delayed.scaling = Scaling::delayed;
  EXPECT_NO_THROW(attempt(delayed, [](QuantizedOut&) {}));  // calibration: no stored scale, the matrix gives it
  Buffer codes(Dtype::u8, {8, 32});
  EXPECT_THROW(ops::quantize(m.ctx, codes.tensor(), {}), Error);
}

}  // namespace
