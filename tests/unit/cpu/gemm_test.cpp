// gemm in the modes blas and fixed, against products in double.
#include "ops/gemm.h"

#include "images.h"

using namespace cpu_test;

namespace {

constexpr GemmMath modes[] = {GemmMath::blas, GemmMath::fixed};

// A plain operand: logically [rows, k], stored inside a wider matrix so that rows lie apart.
struct Plain {
  Buffer storage;
  int64_t rows, k;
  bool transposed;
  static constexpr int64_t margin = 3;

  Plain(const char* name, Dtype dtype, int64_t rows_, int64_t k_, bool transposed_)
      : storage(normal(name, dtype, {transposed_ ? k_ : rows_, (transposed_ ? rows_ : k_) + 2 * margin})),
        rows(rows_),
        k(k_),
        transposed(transposed_) {}
  Operand operand() { return Operand::plain(storage.columns(margin, transposed ? rows : k), transposed); }
  double at(int64_t row, int64_t i) const { return storage.at((transposed ? i : row) * storage.cols() + margin + (transposed ? row : i)); }
};

// Sums of products and of their magnitudes: FP32 rounding errors are relative to the latter.
struct Product {
  std::vector<double> value, magnitude;
  Product(int64_t m, int64_t n) : value(static_cast<size_t>(m * n)), magnitude(value) {}
  template <class A, class B>
  void add(int64_t m, int64_t n, int64_t k, A&& a, B&& b) {
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        for (int64_t p = 0; p < k; ++p) {
          const double product = a(i, p) * b(j, p);
          value[static_cast<size_t>(i * n + j)] += product;
          magnitude[static_cast<size_t>(i * n + j)] += std::fabs(product);
        }
      }
    }
  }
};

void expect_product(const Buffer& got, const Product& want, const std::string& what) {
  const double unit = got.dtype() == Dtype::bf16 ? 0x1.02p-8 : 0.0;
  for (int64_t i = 0; i < got.elements(); ++i) {
    const auto k = static_cast<size_t>(i);
    if (!(std::fabs(got.at(i) - want.value[k]) <= unit * std::fabs(want.value[k]) + 5e-6 * want.magnitude[k])) {
      ADD_FAILURE() << what << ": element " << i << " is " << got.at(i) << ", " << want.value[k] << " expected";
      return;
    }
  }
}

TEST(gemm, all_layouts_dtypes_and_sizes) {
  const int64_t sizes[][3] = {{1, 1, 1}, {3, 5, 7}, {64, 48, 96}, {33, 130, 65}, {257, 9, 40}, {40, 600, 17}};
  for (const auto& [m, n, k] : sizes) {
    for (GemmMath math : modes) {
      for (Dtype in : both_dtypes) {
        for (Dtype out_dtype : both_dtypes) {
          for (int layout = 0; layout < 4; ++layout) {
            Plain a("a", in, m, k, layout & 1), b("b", in, n, k, layout & 2);
            Product want(m, n);
            want.add(m, n, k, [&](int64_t i, int64_t p) { return a.at(i, p); }, [&](int64_t j, int64_t p) { return b.at(j, p); });
            const Outputs out = run({Buffer(out_dtype, {m, n}, 0xFF)}, [&](Ctx& ctx, Outputs& o) {
              const GemmTerm term{a.operand(), b.operand()};
              ops::gemm(ctx, {&term, 1}, o[0].tensor(), 0.0f, Accumulate::accurate);
            }, math);
            expect_product(out[0], want, fmt::format("{}x{}x{} layout {} {} to {}", m, n, k, layout, name(in), name(out_dtype)));
          }
        }
      }
    }
  }
}

TEST(gemm, bias_beta_and_leading_dimension) {
  const int64_t m = 37, n = 45, k = 30;
  for (GemmMath math : modes) {
    for (Dtype out_dtype : both_dtypes) {
      for (float beta : {0.0f, 1.0f}) {
        if (beta == 1.0f && out_dtype == Dtype::bf16) continue;
        for (int with_bias = 0; with_bias < 3; ++with_bias) {
          Plain a("a", Dtype::bf16, m, k, false), b("b", Dtype::bf16, n, k, false);
          Buffer bias = normal("bias", with_bias == 1 ? Dtype::f32 : Dtype::bf16, {n});
          Product want(m, n);
          want.add(m, n, k, [&](int64_t i, int64_t p) { return a.at(i, p); }, [&](int64_t j, int64_t p) { return b.at(j, p); });
          Buffer initial = normal("initial", out_dtype, {m, n + 8});
          const Outputs out = run({initial}, [&](Ctx& ctx, Outputs& o) {
            const GemmTerm term{a.operand(), b.operand()};
            ops::gemm(ctx, {&term, 1}, o[0].columns(5, n), beta, Accumulate::accurate, with_bias ? bias.tensor() : Tensor{});
          }, math);
          Buffer inner(out_dtype, {m, n});
          for (int64_t i = 0; i < m; ++i) {
            for (int64_t j = 0; j < n + 8; ++j) {
              const int64_t at = i * (n + 8) + j;
              if (j < 5 || j >= n + 5) {
                ASSERT_EQ(out[0].at(at), initial.at(at)) << "wrote outside its columns";
                continue;
              }
              const auto w = static_cast<size_t>(i * n + j - 5);
              for (double extra : {beta != 0.0f ? initial.at(at) : 0.0, with_bias ? bias.at(j - 5) : 0.0}) {
                want.value[w] += extra;
                want.magnitude[w] += std::fabs(extra);
              }
              inner.set(i * n + j - 5, out[0].at(at));
            }
          }
          expect_product(inner, want, fmt::format("beta {} bias {} {}", beta, with_bias, name(out_dtype)));
        }
      }
    }
  }
}

TEST(gemm, terms_are_summed_before_the_one_rounding) {
  const int64_t m = 35, n = 50;
  const int64_t depths[] = {64, 16, 5};
  for (GemmMath math : modes) {
    std::vector<Plain> a, b;
    Product want(m, n);
    for (size_t t = 0; t < 3; ++t) {
      a.emplace_back(fmt::format("a{}", t).c_str(), Dtype::bf16, m, depths[t], t == 1);
      b.emplace_back(fmt::format("b{}", t).c_str(), Dtype::bf16, n, depths[t], t != 1);
      want.add(m, n, depths[t], [&](int64_t i, int64_t p) { return a[t].at(i, p); }, [&](int64_t j, int64_t p) { return b[t].at(j, p); });
    }
    const Outputs out = run({Buffer(Dtype::bf16, {m, n}), Buffer(Dtype::f32, {m, n})}, [&](Ctx& ctx, Outputs& o) {
      std::vector<GemmTerm> terms;
      for (size_t t = 0; t < 3; ++t) terms.push_back({a[t].operand(), b[t].operand()});
      ops::gemm(ctx, terms, o[0].tensor(), 0.0f, Accumulate::accurate);
      ops::gemm(ctx, terms, o[1].tensor(), 0.0f, Accumulate::accurate);
    }, math);
    expect_product(out[0], want, "bf16");
    expect_product(out[1], want, "f32");
    for (int64_t i = 0; i < m * n; ++i) EXPECT_EQ(out[0].f(i), to_float(to_bf16(out[1].f(i))));
  }
}

TEST(gemm, quantized_operands_stand_for_code_times_scale) {
  struct Case {
    QuantSpec a, b;
  };
  const Case cases[] = {{block_spec(Dtype::e4m3, 0, 0), block_spec(Dtype::e5m2, 0, 0)},
                        {block_spec(Dtype::e4m3, 1, 0, ScaleKind::pow2), block_spec(Dtype::e4m3, 1, 0, ScaleKind::pow2)},
                        {block_spec(Dtype::e4m3, 1, 128), block_spec(Dtype::e4m3, 128, 128)},
                        {block_spec(Dtype::e4m3, 1, 32, ScaleKind::e8m0), block_spec(Dtype::e5m2, 1, 32, ScaleKind::e8m0)},
                        {block_spec(Dtype::e2m1, 1, 7), block_spec(Dtype::e3m2, 5, 3)},
                        {block_spec(Dtype::e2m3, 0, 64), block_spec(Dtype::e2m1, 1, 1)}};
  const int64_t m = 70, n = 33, k = 200;
  for (const Case& c : cases) {
    for (int layout = 0; layout < 4; ++layout) {
      Machine machine;
      const bool at = layout & 1, bt = layout & 2;
      Buffer x = normal("x", Dtype::bf16, at ? Shape{k, m} : Shape{m, k}, 3.0), w = normal("w", Dtype::bf16, bt ? Shape{k, n} : Shape{n, k}, 0.02);
      Image a = quantized(machine.ctx, x.tensor(), c.a, at), b = quantized(machine.ctx, w.tensor(), c.b, bt);
      Product want(m, n);
      want.add(
          m, n, k, [&](int64_t i, int64_t p) { return at ? a.value(p, i) : a.value(i, p); },
          [&](int64_t j, int64_t p) { return bt ? b.value(p, j) : b.value(j, p); });
      for (GemmMath math : modes) {
        const Outputs out = run({Buffer(Dtype::f32, {m, n})}, [&](Ctx& ctx, Outputs& o) {
          const GemmTerm term{a.operand(), b.operand()};
          ops::gemm(ctx, {&term, 1}, o[0].tensor(), 0.0f, Accumulate::fast);
        }, math);
        expect_product(out[0], want, fmt::format("{} by {} layout {}", name(c.a.format), name(c.b.format), layout));
      }
    }
  }
}

// The mode fixed is an fma chain over k in index order, on any machine: inputs without libm, output bits pinned.
TEST(gemm, fixed_mode_is_the_same_everywhere) {
  const int64_t m = 37, n = 53, k = 71;
  Buffer a(Dtype::f32, {m, k}), b(Dtype::f32, {n, k}), bt(Dtype::f32, {k, n});
  const Philox rng(1, RngPurpose::init, "fixed");
  const auto value = [&](int64_t i) { return static_cast<double>(rng.word(static_cast<uint64_t>(i)) >> 8) * 0x1p-23 - 1.0; };
  for (int64_t i = 0; i < m * k; ++i) a.set(i, value(i));
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t p = 0; p < k; ++p) {
      b.set(j * k + p, value(m * k + j * k + p));
      bt.set(p * n + j, b.at(j * k + p));
    }
  }
  for (bool transposed : {false, true}) {
    const Outputs out = run({Buffer(Dtype::f32, {m, n})}, [&](Ctx& ctx, Outputs& o) {
      const GemmTerm term{Operand::plain(a.tensor()), transposed ? Operand::plain(bt.tensor(), true) : Operand::plain(b.tensor())};
      ops::gemm(ctx, {&term, 1}, o[0].tensor(), 0.0f, Accumulate::accurate);
    }, GemmMath::fixed);
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        float chain = 0.0f;
        for (int64_t p = 0; p < k; ++p) chain = std::fma(a.f(i * k + p), b.f(j * k + p), chain);
        ASSERT_EQ(out[0].f(i * n + j), chain) << i << ", " << j;
      }
    }
    const std::vector<uint8_t>& bytes = out[0].bytes();
    EXPECT_EQ(fnv1a64({reinterpret_cast<const char*>(bytes.data()), bytes.size()}), 0x8daf600586994780ull);
  }
}

TEST(gemm, empty_and_zero_depth_products) {
  for (GemmMath math : modes) {
    Machine m(math);
    Buffer a = normal("a", Dtype::bf16, {4, 8}), none(Dtype::bf16, {0, 8}), out(Dtype::f32, {4, 0}), tall(Dtype::f32, {0, 4});
    const GemmTerm wide{Operand::plain(a.tensor()), Operand::plain(none.tensor())}, narrow{Operand::plain(none.tensor()), Operand::plain(a.tensor())};
    EXPECT_NO_THROW(ops::gemm(m.ctx, {&wide, 1}, out.tensor(), 0.0f, Accumulate::accurate));
    EXPECT_NO_THROW(ops::gemm(m.ctx, {&narrow, 1}, tall.tensor(), 0.0f, Accumulate::accurate));
    // A weight gradient over no tokens: nothing is added, or zeros are written.
    Buffer dy(Dtype::bf16, {0, 4}), x(Dtype::bf16, {0, 8}), dw = normal("dw", Dtype::f32, {4, 8});
    const Buffer before = dw;
    const GemmTerm no_tokens{Operand::plain(dy.tensor(), true), Operand::plain(x.tensor(), true)};
    ops::gemm(m.ctx, {&no_tokens, 1}, dw.tensor(), 1.0f, Accumulate::accurate);
    EXPECT_EQ(dw.bytes(), before.bytes());
    ops::gemm(m.ctx, {&no_tokens, 1}, dw.tensor(), 0.0f, Accumulate::accurate);
    EXPECT_EQ(dw.bytes(), Buffer(Dtype::f32, {4, 8}).bytes());
  }
}

TEST(gemm, mismatched_arguments_are_internal_errors) {
  Machine m;
  Buffer a = normal("a", Dtype::bf16, {4, 8}), b = normal("b", Dtype::bf16, {5, 8}), c = normal("c", Dtype::bf16, {5, 7}), out(Dtype::bf16, {4, 5}),
         bias(Dtype::bf16, {4});
  const auto call = [&](const Buffer& right, const MatrixView& to, float beta, const Tensor& add) {
    Buffer r = right;
    const GemmTerm term{Operand::plain(a.tensor()), Operand::plain(r.tensor())};
    ops::gemm(m.ctx, {&term, 1}, to, beta, Accumulate::accurate, add);
  };
  EXPECT_NO_THROW(call(b, out.tensor(), 0.0f, {}));
  EXPECT_THROW(call(c, out.tensor(), 0.0f, {}), Error);              // depths differ
  EXPECT_THROW(call(a, out.tensor(), 0.0f, {}), Error);              // width of out
  EXPECT_THROW(call(b, out.tensor(), 1.0f, {}), Error);              // accumulation in bf16
  EXPECT_THROW(call(b, out.tensor(), 0.0f, bias.tensor()), Error);   // length of bias
  EXPECT_THROW(ops::gemm(m.ctx, {}, out.tensor(), 0.0f, Accumulate::accurate), Error);
  const Image q = quantized(m.ctx, b.tensor(), block_spec(Dtype::e4m3, 0, 0), false);
  Image right = q;
  const GemmTerm mixed{Operand::plain(a.tensor()), right.operand()};
  EXPECT_THROW(ops::gemm(m.ctx, {&mixed, 1}, out.tensor(), 0.0f, Accumulate::accurate), Error);
}

}  // namespace
