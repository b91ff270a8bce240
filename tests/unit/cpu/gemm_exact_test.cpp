// gemm in the mode exact: the functions of numerics/accumulate.h, composed here from the description in cpu/gemm_exact.h.
#include "images.h"
#include "numerics/accumulate.h"
#include "ops/gemm.h"

using namespace cpu_test;

namespace {

struct Line {
  std::vector<float> value, scale;
};

// Logical row `row` of an image: decoded codes, and the scale of each.
Line line_of(Image& image, int64_t row) {
  const Operand o = image.operand();
  Line line;
  for (int64_t i = 0; i < o.k(); ++i) {
    const int64_t r = o.transposed ? i : row, c = o.transposed ? row : i;
    const int64_t br = o.block_rows ? r / o.block_rows : 0, bc = o.block_cols ? c / o.block_cols : 0;
    line.value.push_back(decode(image.spec.format, image.data.code(r * image.data.cols() + c)));
    line.scale.push_back(image.scale_inv.f(br * image.scale_inv.cols() + bc));
  }
  return line;
}

// The pieces of k between two cuts; cuts are where `cut(i)` says so.
template <class Cut>
float composed(const Line& a, Dtype fa, const Line& b, Dtype fb, float sum, Cut&& cut) {
  const size_t k = a.value.size();
  size_t begin = 0;
  for (size_t i = 1; i <= k; ++i) {
    if (i < k && !cut(i)) continue;
    const float chain = tensor_core_chain(&a.value[begin], fa, &b.value[begin], fb, static_cast<int64_t>(i - begin), 0.0f);
    sum = std::fma(chain, a.scale[begin] * b.scale[begin], sum);
    begin = i;
  }
  return sum;
}

Buffer exact_product(Image& a, Image& b, Accumulate accumulate, Dtype out_dtype = Dtype::f32, float beta = 0.0f, const Buffer* initial = nullptr) {
  const Operand oa = a.operand(), ob = b.operand();
  Buffer start = initial ? *initial : Buffer(out_dtype, {oa.rows(), ob.rows()});
  return run({start}, [&](Ctx& ctx, Outputs& o) {
    const GemmTerm term{oa, ob};
    ops::gemm(ctx, {&term, 1}, o[0].tensor(), beta, accumulate);
  }, GemmMath::exact)[0];
}

constexpr int64_t small_m = 5, small_n = 6;

TEST(gemm_exact, per_tensor_scales) {
  for (int64_t k : {1, 31, 128, 200, 600}) {
    for (bool transposed : {false, true}) {
      Machine machine;
      Buffer x = normal("x", Dtype::bf16, transposed ? Shape{k, small_m} : Shape{small_m, k}), w = normal("w", Dtype::bf16, {small_n, k}, 0.1);
      Image a = quantized(machine.ctx, x.tensor(), block_spec(Dtype::e5m2, 0, 0), transposed),
            b = quantized(machine.ctx, w.tensor(), block_spec(Dtype::e4m3, 0, 0), false);
      const Buffer fast = exact_product(a, b, Accumulate::fast), accurate = exact_product(a, b, Accumulate::accurate);
      for (int64_t i = 0; i < small_m; ++i) {
        for (int64_t j = 0; j < small_n; ++j) {
          const Line la = line_of(a, i), lb = line_of(b, j);
          // fast: one chain over all of k, never promoted.
          const float chain = tensor_core_chain(la.value.data(), Dtype::e5m2, lb.value.data(), Dtype::e4m3, k, 0.0f);
          EXPECT_EQ(fast.f(i * small_n + j), chain * (la.scale[0] * lb.scale[0]));
          EXPECT_EQ(accurate.f(i * small_n + j), composed(la, Dtype::e5m2, lb, Dtype::e4m3, 0.0f, [](size_t at) { return at % 128 == 0; }));
        }
      }
      if (k > 128) {
        EXPECT_NE(fast.bytes(), accurate.bytes());
      }
    }
  }
}

TEST(gemm_exact, powers_of_two_commute_with_promotion) {
  Machine machine;
  const int64_t k = 512;
  Buffer x = normal("x", Dtype::bf16, {small_m, k}), w = normal("w", Dtype::bf16, {small_n, k}, 0.1);
  const QuantSpec s = block_spec(Dtype::e4m3, 0, 0, ScaleKind::pow2);
  Image a = quantized(machine.ctx, x.tensor(), s, false), b = quantized(machine.ctx, w.tensor(), s, false);
  const Buffer out = exact_product(a, b, Accumulate::accurate);
  for (int64_t i = 0; i < small_m; ++i) {
    for (int64_t j = 0; j < small_n; ++j) {
      const Line la = line_of(a, i), lb = line_of(b, j);
      EXPECT_EQ(out.f(i * small_n + j),
                tensor_core_promoted(la.value.data(), Dtype::e4m3, lb.value.data(), Dtype::e4m3, k, 128) * (la.scale[0] * lb.scale[0]));
    }
  }
}

// Elements of block b along k are about 3^b: neighbouring blocks have different scales.
Buffer graded(const char* name, int64_t rows, int64_t k, int64_t block) {
  Buffer x = normal(name, Dtype::bf16, {rows, k});
  for (int64_t i = 0; i < x.elements(); ++i) x.set(i, x.at(i) * std::pow(3.0, static_cast<double>(i % k / block)));
  return x;
}

TEST(gemm_exact, block_scales_cut_the_chain_in_both_modes) {
  Machine machine;
  const int64_t k = 128 * 3 + 40;
  Buffer x = graded("x", small_m, k, 128), w = graded("w", small_n, k, 128);
  for (ScaleKind kind : {ScaleKind::fp32, ScaleKind::pow2}) {
    Image a = quantized(machine.ctx, x.tensor(), block_spec(Dtype::e4m3, 1, 128, kind), false),
          b = quantized(machine.ctx, w.tensor(), block_spec(Dtype::e4m3, 128, 128, kind), false);
    const Buffer fast = exact_product(a, b, Accumulate::fast), accurate = exact_product(a, b, Accumulate::accurate);
    EXPECT_EQ(fast.bytes(), accurate.bytes());  // blocks of 128 are promoted anyway
    for (int64_t i = 0; i < small_m; ++i) {
      for (int64_t j = 0; j < small_n; ++j) {
        EXPECT_EQ(fast.f(i * small_n + j),
                  composed(line_of(a, i), Dtype::e4m3, line_of(b, j), Dtype::e4m3, 0.0f, [](size_t at) { return at % 128 == 0; }));
      }
    }
  }
}

TEST(gemm_exact, short_blocks_cut_at_every_change_of_scale) {
  Machine machine;
  const int64_t k = 160;
  Buffer x = graded("x", small_m, k, 32), w = graded("w", small_n, k, 80);
  Image a = quantized(machine.ctx, x.tensor(), block_spec(Dtype::e4m3, 1, 32, ScaleKind::e8m0), false);
  Image b = quantized(machine.ctx, w.tensor(), block_spec(Dtype::e4m3, 1, 80), false);
  const Buffer out = exact_product(a, b, Accumulate::accurate);
  for (int64_t i = 0; i < small_m; ++i) {
    for (int64_t j = 0; j < small_n; ++j) {
      const Line la = line_of(a, i), lb = line_of(b, j);
      const auto changes = [&](size_t at) { return la.scale[at] != la.scale[at - 1] || lb.scale[at] != lb.scale[at - 1] || at % 128 == 0; };
      EXPECT_EQ(out.f(i * small_n + j), composed(la, Dtype::e4m3, lb, Dtype::e4m3, 0.0f, changes));
    }
  }
}

TEST(gemm_exact, beta_and_bf16_output) {
  Machine machine;
  const int64_t k = 200;
  Buffer x = normal("x", Dtype::bf16, {small_m, k}), w = normal("w", Dtype::bf16, {small_n, k}),
         initial = normal("c", Dtype::f32, {small_m, small_n}, 5.0);
  const QuantSpec s = block_spec(Dtype::e4m3, 0, 0);
  Image a = quantized(machine.ctx, x.tensor(), s, false), b = quantized(machine.ctx, w.tensor(), s, false);
  const Buffer plain = exact_product(a, b, Accumulate::accurate), added = exact_product(a, b, Accumulate::accurate, Dtype::f32, 1.0f, &initial);
  const Buffer rounded = exact_product(a, b, Accumulate::accurate, Dtype::bf16);
  for (int64_t i = 0; i < small_m; ++i) {
    for (int64_t j = 0; j < small_n; ++j) {
      const int64_t at = i * small_n + j;
      EXPECT_EQ(added.f(at), composed(line_of(a, i), Dtype::e4m3, line_of(b, j), Dtype::e4m3, initial.f(at), [](size_t p) { return p % 128 == 0; }));
      EXPECT_EQ(rounded.f(at), to_float(to_bf16(plain.f(at))));
    }
  }
}

TEST(gemm_exact, terms_follow_each_other) {
  Machine machine;
  const QuantSpec s = block_spec(Dtype::e4m3, 0, 0);
  Buffer x1 = normal("x1", Dtype::bf16, {small_m, 96}), w1 = normal("w1", Dtype::bf16, {small_n, 96}), x2 = normal("x2", Dtype::bf16, {small_m, 40}),
         w2 = normal("w2", Dtype::bf16, {small_n, 40});
  Image a1 = quantized(machine.ctx, x1.tensor(), s, false), b1 = quantized(machine.ctx, w1.tensor(), s, false);
  Image a2 = quantized(machine.ctx, x2.tensor(), s, false), b2 = quantized(machine.ctx, w2.tensor(), s, false);
  const Buffer first = exact_product(a1, b1, Accumulate::fast);
  const Buffer both = run({Buffer(Dtype::f32, {small_m, small_n})}, [&](Ctx& ctx, Outputs& o) {
    const GemmTerm terms[] = {{a1.operand(), b1.operand()}, {a2.operand(), b2.operand()}};
    ops::gemm(ctx, terms, o[0].tensor(), 0.0f, Accumulate::fast);
  }, GemmMath::exact)[0];
  EXPECT_EQ(both.bytes(), exact_product(a2, b2, Accumulate::fast, Dtype::f32, 1.0f, &first).bytes());
}

TEST(gemm_exact, unquantized_operands_are_multiplied_as_in_fixed) {
  Buffer x = normal("x", Dtype::bf16, {small_m, 70}), w = normal("w", Dtype::bf16, {small_n, 70});
  const auto product = [&](GemmMath math) {
    return run({Buffer(Dtype::f32, {small_m, small_n})}, [&](Ctx& ctx, Outputs& o) {
      const GemmTerm term{Operand::plain(x.tensor()), Operand::plain(w.tensor())};
      ops::gemm(ctx, {&term, 1}, o[0].tensor(), 0.0f, Accumulate::fast);
    }, math)[0];
  };
  EXPECT_EQ(product(GemmMath::exact).bytes(), product(GemmMath::fixed).bytes());
}

}  // namespace
