// Causal grouped-query attention, forward and backward, against double.
#include "ops/attention.h"

#include "support.h"

using namespace cpu_test;

namespace {

struct AttentionCase {
  int64_t samples, seq_len;
  HeadGeometry g;
  std::vector<int32_t> documents;  // starts of documents within a sample, the same for each sample; empty: no masking
};
const AttentionCase attention_cases[] = {
    {1, 1, {1, 1, 4, 4, 0}, {}},
    {2, 5, {2, 2, 8, 8, 0}, {}},
    {2, 64, {4, 2, 8, 8, 0}, {}},
    {1, 100, {4, 1, 12, 12, 0}, {}},
    {2, 130, {3, 3, 16, 16, 0}, {}},
    {1, 10, {2, 1, 8, 8, 0}, {0, 1, 4}},
    {2, 130, {4, 2, 8, 8, 0}, {0, 30, 64, 65, 120}},
    {1, 200, {2, 1, 8, 8, 0}, {0, 150}},
};

struct AttentionProblem {
  const AttentionCase& c;
  HeadGeometry g;
  int64_t rows, d, width, out_width;
  Buffer qkv, documents, d_out;

  AttentionProblem(const AttentionCase& c_, Dtype dtype, double scale = 1.0)
      : c(c_),
        g(c.g),
        rows(c.samples * c.seq_len),
        d(g.head_dim),
        width(g.qkv_width()),
        out_width(g.heads * d),
        qkv(normal("qkv", dtype, {rows, width}, scale)),
        documents(Dtype::i32, {rows}),
        d_out(normal("d_out", dtype, {rows, out_width})) {
    for (int64_t r = 0; r < rows; ++r) {
      for (int32_t start : c.documents) {
        if (r % c.seq_len >= start) documents.set(r, start);
      }
    }
  }
  Tensor document_start() { return c.documents.empty() ? Tensor{} : documents.tensor(); }
  Shape out_shape() const { return {rows, out_width}; }
  Shape lse_shape() const { return {c.samples, g.heads, c.seq_len}; }
};

struct AttentionReference {
  std::vector<double> out, lse, d_qkv;
};

AttentionReference reference(AttentionProblem& s) {
  const int64_t d = s.d, seq = s.c.seq_len, group = s.g.heads / s.g.kv_heads;
  const double scale = 1.0 / std::sqrt(static_cast<double>(d));
  AttentionReference ref{std::vector<double>(static_cast<size_t>(s.rows * s.out_width)),
                std::vector<double>(static_cast<size_t>(s.c.samples * s.g.heads * seq)), std::vector<double>(static_cast<size_t>(s.rows * s.width))};
  for (int64_t b = 0; b < s.c.samples; ++b) {
    for (int64_t h = 0; h < s.g.heads; ++h) {
      const int64_t q = h * d, k = (s.g.heads + h / group) * d, v = (s.g.heads + s.g.kv_heads + h / group) * d;
      for (int64_t i = 0; i < seq; ++i) {
        const int64_t qi = (b * seq + i) * s.width + q, oi = (b * seq + i) * s.out_width + h * d;
        const auto first = static_cast<int64_t>(s.documents.at(b * seq + i));
        std::vector<double> p, dp;
        double sum = 0, delta = 0, largest = -std::numeric_limits<double>::infinity();
        for (int64_t j = first; j <= i; ++j) {
          double score = 0;
          for (int64_t e = 0; e < d; ++e) score += s.qkv.at(qi + e) * s.qkv.at((b * seq + j) * s.width + k + e);
          p.push_back(score * scale);
          largest = std::max(largest, p.back());
        }
        for (double& pj : p) sum += pj = std::exp(pj - largest);
        ref.lse[static_cast<size_t>((b * s.g.heads + h) * seq + i)] = largest + std::log(sum);
        for (int64_t j = first; j <= i; ++j) {
          double& pj = p[static_cast<size_t>(j - first)];
          pj /= sum;
          double dot = 0;
          for (int64_t e = 0; e < d; ++e) {
            const double vj = s.qkv.at((b * seq + j) * s.width + v + e);
            ref.out[static_cast<size_t>(oi + e)] += pj * vj;
            dot += s.d_out.at(oi + e) * vj;
          }
          dp.push_back(dot);
          delta += pj * dot;
        }
        for (int64_t j = first; j <= i; ++j) {
          const double pj = p[static_cast<size_t>(j - first)], ds = pj * (dp[static_cast<size_t>(j - first)] - delta) * scale;
          const int64_t row = (b * seq + j) * s.width;
          for (int64_t e = 0; e < d; ++e) {
            ref.d_qkv[static_cast<size_t>(qi + e)] += ds * s.qkv.at(row + k + e);
            ref.d_qkv[static_cast<size_t>(row + k + e)] += ds * s.qkv.at(qi + e);
            ref.d_qkv[static_cast<size_t>(row + v + e)] += pj * s.d_out.at(oi + e);
          }
        }
      }
    }
  }
  return ref;
}

TEST(attention, forward_and_backward) {
  for (const AttentionCase& c : attention_cases) {
    for (Dtype dtype : both_dtypes) {
      for (GemmMath math : {GemmMath::blas, GemmMath::fixed}) {
        AttentionProblem s(c, dtype);
        const AttentionReference want = reference(s);
        const Outputs f = run({Buffer(dtype, s.out_shape()), Buffer(Dtype::f32, s.lse_shape())}, [&](Ctx& ctx, Outputs& o) {
          ops::attention(ctx, s.qkv.tensor(), s.document_start(), c.seq_len, s.g, o[0].tensor(), o[1].tensor());
        }, math);
        const std::string what = fmt::format("S {} heads {}/{} {}", c.seq_len, s.g.heads, s.g.kv_heads, name(dtype));
        expect_close(f[0], want.out, 2e-6, what + " out");
        expect_close(f[1], want.lse, 2e-6, what + " lse");
        Buffer out = f[0], lse = f[1];
        const Outputs b = run(
            {Buffer(dtype, {s.rows, s.width}, 0xFF)},
            [&](Ctx& ctx, Outputs& o) {
              ops::attention_backward(ctx, s.d_out.tensor(), s.qkv.tensor(), out.tensor(), lse.tensor(), s.document_start(), c.seq_len, s.g,
                                      o[0].tensor());
            },
            math);
        // With bf16 the rounded output enters the gradient of the scores.
        expect_close(b[0], want.d_qkv, dtype == Dtype::f32 ? 5e-6 : 4e-3, what + " d_qkv");
      }
    }
  }
}

TEST(attention, large_scores_neither_overflow_nor_lose_the_maximum) {
  for (Dtype dtype : both_dtypes) {
    AttentionProblem s(attention_cases[2], dtype, 12.0);  // scores up to several hundred
    const AttentionReference want = reference(s);
    const Outputs f = run({Buffer(dtype, s.out_shape()), Buffer(Dtype::f32, s.lse_shape())}, [&](Ctx& ctx, Outputs& o) {
      ops::attention(ctx, s.qkv.tensor(), s.document_start(), s.c.seq_len, s.g, o[0].tensor(), o[1].tensor());
    });
    expect_close(f[0], want.out, 3e-5, "out");
    expect_close(f[1], want.lse, 1e-6, "lse");
  }
}

TEST(attention, the_first_token_of_a_document_sees_itself_alone) {
  AttentionProblem s(attention_cases[6], Dtype::f32);
  Machine m;
  Buffer out(Dtype::f32, s.out_shape()), lse(Dtype::f32, s.lse_shape());
  ops::attention(m.ctx, s.qkv.tensor(), s.document_start(), s.c.seq_len, s.g, out.tensor(), lse.tensor());
  for (int32_t start : s.c.documents) {
    for (int64_t h = 0; h < s.g.heads; ++h) {
      for (int64_t e = 0; e < s.d; ++e) {
        const int64_t v = start * s.width + (s.g.heads + s.g.kv_heads + h / 2) * s.d + e;
        EXPECT_EQ(out.f(start * s.out_width + h * s.d + e), s.qkv.f(v));
      }
    }
  }
}

TEST(attention, documents_do_not_leak) {
  for (GemmMath math : {GemmMath::blas, GemmMath::fixed}) {
    for (const AttentionCase* c : {&attention_cases[6], &attention_cases[7]}) {
      const int64_t boundary = c->documents[1], end = c->seq_len;
      AttentionProblem s(*c, Dtype::bf16);
      const auto pass = [&] {
        Machine m(math);
        Buffer out(Dtype::bf16, s.out_shape()), lse(Dtype::f32, s.lse_shape()), d(Dtype::bf16, {s.rows, s.width});
        ops::attention(m.ctx, s.qkv.tensor(), s.document_start(), c->seq_len, s.g, out.tensor(), lse.tensor());
        ops::attention_backward(m.ctx, s.d_out.tensor(), s.qkv.tensor(), out.tensor(), lse.tensor(), s.document_start(), c->seq_len, s.g, d.tensor());
        return std::pair{out, d};
      };
      const auto [out, d] = pass();
      for (int64_t i = 0; i < boundary * s.width; ++i) s.qkv.set(i, 3.0 * s.qkv.at(i) + 0.5);
      for (int64_t i = 0; i < boundary * s.out_width; ++i) s.d_out.set(i, -2.0 * s.d_out.at(i));
      const auto [out2, d2] = pass();
      for (int64_t i = 0; i < end * s.out_width; ++i) {
        if (i >= boundary * s.out_width) {
          ASSERT_EQ(out.f(i), out2.f(i)) << i;
        }
      }
      for (int64_t i = 0; i < end * s.width; ++i) {
        if (i >= boundary * s.width) {
          ASSERT_EQ(d.f(i), d2.f(i)) << i;
        }
      }
      EXPECT_NE(out.bytes(), out2.bytes());
      EXPECT_NE(d.bytes(), d2.bytes());
    }
  }
}

TEST(attention, the_future_is_invisible) {
  AttentionProblem s(attention_cases[3], Dtype::bf16);
  const auto forward = [&] {
    Machine m(GemmMath::blas);
    Buffer out(Dtype::bf16, s.out_shape()), lse(Dtype::f32, s.lse_shape());
    ops::attention(m.ctx, s.qkv.tensor(), {}, s.c.seq_len, s.g, out.tensor(), lse.tensor());
    return out;
  };
  const Buffer before = forward();
  for (int64_t i = 70 * s.width; i < s.rows * s.width; ++i) s.qkv.set(i, -s.qkv.at(i));
  const Buffer after = forward();
  for (int64_t i = 0; i < 70 * s.out_width; ++i) ASSERT_EQ(before.f(i), after.f(i)) << i;
  EXPECT_NE(before.bytes(), after.bytes());
}

TEST(attention, non_finite_input_shows_in_the_output) {
  AttentionProblem s(attention_cases[2], Dtype::f32);
  s.qkv.set(3 * s.width + s.g.heads * s.d, std::numeric_limits<double>::quiet_NaN());  // key of token 3, sample 0
  Machine m;
  Buffer out(Dtype::f32, s.out_shape()), lse(Dtype::f32, s.lse_shape());
  ops::attention(m.ctx, s.qkv.tensor(), {}, s.c.seq_len, s.g, out.tensor(), lse.tensor());
  for (int64_t t : {3, 40, 63}) EXPECT_TRUE(std::isnan(out.at(t * s.out_width))) << t;
  EXPECT_FALSE(std::isnan(out.at(2 * s.out_width)));
  EXPECT_FALSE(std::isnan(out.at(64 * s.out_width)));  // the other sample
}

TEST(attention, gradients_by_directional_derivatives) {
  for (const AttentionCase* c : {&attention_cases[1], &attention_cases[5], &attention_cases[6]}) {
    AttentionProblem s(*c, Dtype::f32);
    Machine m(GemmMath::blas);
    Buffer out(Dtype::f32, s.out_shape()), lse(Dtype::f32, s.lse_shape()), d(Dtype::f32, {s.rows, s.width});
    const auto loss = [&] {
      ops::attention(m.ctx, s.qkv.tensor(), s.document_start(), c->seq_len, s.g, out.tensor(), lse.tensor());
      return weighted_sum(out, s.d_out);
    };
    loss();
    ops::attention_backward(m.ctx, s.d_out.tensor(), s.qkv.tensor(), out.tensor(), lse.tensor(), s.document_start(), c->seq_len, s.g, d.tensor());
    expect_gradient({&s.qkv}, {d}, loss);
  }
}

TEST(attention, wrong_shapes_are_internal_errors) {
  AttentionProblem s(attention_cases[2], Dtype::bf16);
  Machine m;
  Buffer out(Dtype::bf16, s.out_shape()), lse(Dtype::f32, s.lse_shape()), starts(Dtype::i32, {7});
  const auto call = [&](int64_t seq_len, const HeadGeometry& g, const Tensor& documents) {
    ops::attention(m.ctx, s.qkv.tensor(), documents, seq_len, g, out.tensor(), lse.tensor());
  };
  EXPECT_NO_THROW(call(64, s.g, {}));
  EXPECT_THROW(call(63, s.g, {}), Error);
  EXPECT_THROW(call(0, s.g, {}), Error);
  EXPECT_THROW(call(64, {3, 2, 8, 8, 0}, {}), Error);
  EXPECT_THROW(call(64, s.g, starts.tensor()), Error);
}

}  // namespace
