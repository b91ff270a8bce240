// Stochastic rounding in quantize: the random numbers are those of the key, so no split of the work changes a bit.
#include "images.h"

using namespace cpu_test;

namespace {

QuantSpec stochastic(Dtype format, int64_t block_rows, int64_t block_cols, ScaleKind scale = ScaleKind::fp32) {
  QuantSpec s = block_spec(format, block_rows, block_cols, scale);
  s.rounding = Rounding::stochastic;
  return s;
}

QuantTarget site(const char* name) {
  QuantTarget t;
  t.site_hash = fnv1a64(name);
  return t;
}

const QuantSpec specs[] = {stochastic(Dtype::e5m2, 0, 0), stochastic(Dtype::e4m3, 1, 128, ScaleKind::pow2),
                           stochastic(Dtype::e4m3, 1, 32, ScaleKind::e8m0), stochastic(Dtype::e2m1, 1, 7), stochastic(Dtype::e4m3, 1, 0)};

TEST(stochastic, each_element_rounds_by_the_word_of_its_key) {
  const int64_t rows = 45, cols = 150;
  const StepKey key{5, 1000};
  for (const QuantSpec& s : specs) {
    for (Dtype dtype : both_dtypes) {
      for (bool column : {false, true}) {
        Buffer x = normal("x", dtype, {rows, cols + 3});
        Image image(s, rows, cols, column);
        const Outputs out = run({image.data, image.scale_inv}, [&](Ctx& ctx, Outputs& o) {
          ctx.seed = 77;
          ctx.key = &key;
          Image target = image;
          QuantizedOut q;
          (column ? q.col_spec : q.row_spec) = s;
          Operand& operand = column ? q.col : q.row;
          operand = target.operand();
          operand.data = o[0].tensor();
          operand.scale_inv = o[1].tensor();
          q.target = site("layers.0.mlp.down/dy");
          ops::quantize(ctx, x.columns(2, cols), q);
        });
        image.data = out[0];
        image.scale_inv = out[1];
        Image nearest = expected_image(x, 2, rows, cols, s, column);
        EXPECT_EQ(image.scale_inv.bytes(), nearest.scale_inv.bytes());  // scales know nothing of the rounding
        const Philox rng(77, RngPurpose::stochastic_rounding, "layers.0.mlp.down/dy", 5);
        const Operand o = image.operand();
        int64_t differs = 0;
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t c = 0; c < cols; ++c) {
            const int64_t br = o.block_rows ? r / o.block_rows : 0, bc = o.block_cols ? c / o.block_cols : 0;
            const float scaled = x.f(r * x.cols() + 2 + c) / image.scale_inv.f(br * image.scale_inv.cols() + bc);
            const uint8_t code = image.data.code(r * cols + c);
            if (s.scale == ScaleKind::pow2 || s.scale == ScaleKind::e8m0) {  // the division above is exact
              ASSERT_EQ(code, encode_stochastic(s.format, scaled, rng.word(static_cast<uint64_t>((1000 + r) * cols + c)))) << r << ", " << c;
            }
            // One of the two neighbours: the distance is below one step of the format at this magnitude.
            const float value = decode(s.format, code), step = std::max(format_info(s.format).min_subnormal,
                                                                        std::ldexp(1.0f, std::ilogb(scaled) - format_info(s.format).mantissa_bits));
            ASSERT_LT(std::fabs(value - scaled), step * 1.0001f) << scaled;
            differs += code != nearest.data.code(r * cols + c);
          }
        }
        EXPECT_GT(differs, rows * cols / 20);
      }
    }
  }
}

TEST(stochastic, a_split_of_the_rows_changes_nothing) {
  Machine m(GemmMath::fixed, 2);
  m.ctx.seed = 3;
  StepKey key{9, 0};
  m.ctx.key = &key;
  const int64_t rows = 64, cols = 96;
  Buffer x = normal("split", Dtype::bf16, {rows, cols});
  QuantSpec delayed = stochastic(Dtype::e4m3, 0, 0);
  delayed.scaling = Scaling::delayed;
  const float scale = 100.0f;
  for (const QuantSpec& s : {stochastic(Dtype::e4m3, 1, 32, ScaleKind::e8m0), stochastic(Dtype::e5m2, 1, 0), delayed}) {
    QuantTarget target = site("w");
    target.stored_scale = &scale;
    key.first_row = 0;
    const Image whole = quantized(m.ctx, x.tensor(), s, false, target);
    std::vector<uint8_t> joined;
    for (const auto& [begin, count] : {std::pair<int64_t, int64_t>{0, 13}, {13, 1}, {14, 50}}) {
      key.first_row = begin;
      const Image image = quantized(m.ctx, x.tensor().slice_rows(begin, count), s, false, target);
      joined.insert(joined.end(), image.data.bytes().begin(), image.data.bytes().end());
    }
    EXPECT_EQ(joined, whole.data.bytes());
  }
}

TEST(stochastic, seed_step_and_site_are_all_in_the_key) {
  Buffer x = normal("key", Dtype::bf16, {16, 64});
  const QuantSpec s = stochastic(Dtype::e4m3, 0, 0);
  const auto codes = [&](uint64_t seed, uint64_t step, const char* name) {
    Machine m;
    m.ctx.seed = seed;
    const StepKey key{step, 0};
    m.ctx.key = &key;
    return quantized(m.ctx, x.tensor(), s, false, site(name)).data.bytes();
  };
  const std::vector<uint8_t> base = codes(1, 1, "a");
  EXPECT_EQ(codes(1, 1, "a"), base);
  EXPECT_NE(codes(2, 1, "a"), base);
  EXPECT_NE(codes(1, 2, "a"), base);
  EXPECT_NE(codes(1, 1, "b"), base);
}

TEST(stochastic, is_unbiased_over_steps) {
  Machine m;
  Buffer x(Dtype::f32, {1, 4096});
  QuantSpec s = stochastic(Dtype::e4m3, 0, 0);
  s.scaling = Scaling::delayed;
  const float one = 1.0f;
  QuantTarget target = site("mean");
  target.stored_scale = &one;
  for (double value : {1.03, -17.9, 0.0007, 300.0}) {
    for (int64_t i = 0; i < x.elements(); ++i) x.set(i, value);
    double sum = 0, squares = 0;
    int64_t n = 0;
    for (uint64_t step = 0; step < 16; ++step) {
      const StepKey key{step, 0};
      m.ctx.key = &key;
      const Image q = quantized(m.ctx, x.tensor(), s, false, target);
      for (int64_t i = 0; i < x.elements(); ++i, ++n) {
        const double e = decode(Dtype::e4m3, q.data.code(i)) - static_cast<double>(x.f(i));
        sum += e;
        squares += e * e;
      }
    }
    EXPECT_GT(squares, 0.0);
    EXPECT_LT(std::fabs(sum), 5.0 * std::sqrt(squares)) << value;  // five standard errors
  }
}

}  // namespace
