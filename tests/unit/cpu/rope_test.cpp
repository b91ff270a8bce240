// qk_norm_rope forward and backward against double.
#include "ops/rope.h"

#include "support.h"

using namespace cpu_test;

namespace {

// cosines, then sines; of angles position * theta^(-2i / rotary).
Buffer table_of(int64_t positions, int64_t rotary, double theta) {
  Buffer t(Dtype::f32, {positions, rotary});
  for (int64_t p = 0; p < positions; ++p) {
    for (int64_t i = 0; i < rotary / 2; ++i) {
      const double angle = static_cast<double>(p) * std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(rotary));
      t.set(p * rotary + i, std::cos(angle));
      t.set(p * rotary + rotary / 2 + i, std::sin(angle));
    }
  }
  return t;
}

struct RopeCase {
  HeadGeometry g;
  bool normed;
};
const RopeCase rope_cases[] = {{{4, 2, 16, 16, 1e-6f}, false}, {{3, 1, 8, 4, 1e-6f}, false}, {{4, 4, 16, 16, 1e-6f}, true}, {{6, 2, 12, 6, 1e-5f}, true}};
constexpr int64_t tokens = 37, max_position = 50;

// One case's operands.
struct RopeProblem {
  HeadGeometry g;
  bool normed;
  Buffer qkv, positions{Dtype::i32, {tokens}}, table, gamma_q, gamma_k, rstd;

  RopeProblem(const RopeCase& c, Dtype dtype)
      : g(c.g),
        normed(c.normed),
        qkv(normal("qkv", dtype, {tokens, g.qkv_width()})),
        table(table_of(max_position, g.rotary_dim, 1e4)),
        gamma_q(normal("gq", dtype, {g.head_dim}, 0.2, 1.0)),
        gamma_k(normal("gk", dtype, {g.head_dim}, 0.2, 1.0)),
        rstd(Dtype::f32, {tokens, g.heads + g.kv_heads}) {
    for (int64_t t = 0; t < tokens; ++t) positions.set(t, static_cast<double>(t * 13 % max_position));
  }
  QkNorm norm(Buffer& r) {
    QkNorm n;
    if (!normed) return n;
    n.gamma_q = gamma_q.tensor();
    n.gamma_k = gamma_k.tensor();
    n.rstd = r.tensor();
    return n;
  }
};

double head_rstd(const RopeProblem& s, int64_t first) {
  double squares = 0;
  for (int64_t i = 0; i < s.g.head_dim; ++i) squares += s.qkv.at(first + i) * s.qkv.at(first + i);
  return 1.0 / std::sqrt(squares / static_cast<double>(s.g.head_dim) + static_cast<double>(s.g.norm_eps));
}

// Turns pairs (i, i + r/2) of u by the token's angle, or back.
void turn(const RopeProblem& s, int64_t token, double direction, double* u) {
  const int64_t half = s.g.rotary_dim / 2, row = static_cast<int64_t>(s.positions.at(token)) * s.g.rotary_dim;
  for (int64_t i = 0; i < half; ++i) {
    const double c = s.table.at(row + i), sn = direction * s.table.at(row + half + i), a = u[i], b = u[i + half];
    u[i] = a * c - b * sn;
    u[i + half] = b * c + a * sn;
  }
}

TEST(rope, forward) {
  for (const RopeCase& c : rope_cases) {
    for (Dtype dtype : both_dtypes) {
      RopeProblem s(c, dtype);
      const Outputs out = run({s.qkv, s.rstd}, [&](Ctx& ctx, Outputs& o) {
        Buffer& r = o[1];
        ops::qk_norm_rope(ctx, s.qkv.tensor(), s.positions.tensor(), s.table.tensor(), s.g, s.norm(r), o[0].tensor());
      });
      std::vector<double> want = s.qkv.values(), rstd;
      for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t h = 0; h < s.g.heads + s.g.kv_heads; ++h) {
          const int64_t first = t * s.g.qkv_width() + h * s.g.head_dim;
          double* u = &want[static_cast<size_t>(first)];
          if (s.normed) {
            rstd.push_back(head_rstd(s, first));
            for (int64_t i = 0; i < s.g.head_dim; ++i) u[i] *= rstd.back() * (h < s.g.heads ? s.gamma_q : s.gamma_k).at(i);
          }
          turn(s, t, 1.0, u);
        }
      }
      expect_close(out[0], want, 1e-6, "qkv");
      if (s.normed) expect_close(out[1], rstd, 1e-6, "rstd");
    }
  }
}

TEST(rope, works_in_place) {
  for (const RopeCase& c : rope_cases) {
    RopeProblem s(c, Dtype::bf16);
    Buffer apart(Dtype::bf16, s.qkv.shape()), in_place = s.qkv, r1 = s.rstd, r2 = s.rstd;
    Machine m;
    ops::qk_norm_rope(m.ctx, s.qkv.tensor(), s.positions.tensor(), s.table.tensor(), s.g, s.norm(r1), apart.tensor());
    ops::qk_norm_rope(m.ctx, in_place.tensor(), s.positions.tensor(), s.table.tensor(), s.g, s.norm(r2), in_place.tensor());
    EXPECT_EQ(apart.bytes(), in_place.bytes());
    EXPECT_EQ(r1.bytes(), r2.bytes());
  }
}

TEST(rope, half_split_pairing) {
  Buffer qkv(Dtype::f32, {1, 12}), positions = integers({1}), table = table_of(2, 4, 1e4);
  for (int64_t h = 0; h < 3; ++h) qkv.set(h * 4, 1.0);
  Machine m;
  ops::qk_norm_rope(m.ctx, qkv.tensor(), positions.tensor(), table.tensor(), {1, 1, 4, 4, 1e-6f}, {}, qkv.tensor());
  const double want[] = {std::cos(1.0), 0, std::sin(1.0), 0, std::cos(1.0), 0, std::sin(1.0), 0, 1, 0, 0, 0};  // q, k turned; v as it was
  for (int64_t i = 0; i < 12; ++i) EXPECT_NEAR(qkv.at(i), want[i], 1e-7) << i;
}

TEST(rope, position_zero_and_values_beyond_the_rotated_part_pass_through) {
  RopeProblem s({{2, 1, 8, 4, 1e-6f}, false}, Dtype::bf16);
  s.positions.set(0, 0.0);
  Buffer out(Dtype::bf16, s.qkv.shape());
  Machine m;
  ops::qk_norm_rope(m.ctx, s.qkv.tensor(), s.positions.tensor(), s.table.tensor(), s.g, {}, out.tensor());
  const int64_t width = s.g.qkv_width();
  for (int64_t i = 0; i < width; ++i) EXPECT_EQ(out.f(i), s.qkv.f(i));
  for (int64_t t = 1; t < tokens; ++t) {
    for (int64_t i = 0; i < width; ++i) {
      if (i >= 24 || i % 8 >= 4) {
        EXPECT_EQ(out.f(t * width + i), s.qkv.f(t * width + i));
      }
    }
  }
}

TEST(rope, backward_without_norm_is_the_inverse_rotation) {
  for (const RopeCase& c : rope_cases) {
    if (c.normed) continue;
    RopeProblem s(c, Dtype::f32);
    Machine m;
    Buffer out(Dtype::f32, s.qkv.shape());
    ops::qk_norm_rope(m.ctx, s.qkv.tensor(), s.positions.tensor(), s.table.tensor(), s.g, {}, out.tensor());
    const Outputs back = run({out}, [&](Ctx& ctx, Outputs& o) {
      ops::qk_norm_rope_backward(ctx, o[0].tensor(), {}, s.positions.tensor(), s.table.tensor(), s.g, {}, o[0].tensor());
    });
    expect_close(back[0], s.qkv.values(), 3e-7, "there and back");
  }
}

TEST(rope, backward_with_norm) {
  for (const RopeCase& c : rope_cases) {
    if (!c.normed) continue;
    for (Dtype dtype : both_dtypes) {
      RopeProblem s(c, dtype);
      const int64_t d = s.g.head_dim, rotated = s.g.heads + s.g.kv_heads;
      for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t h = 0; h < rotated; ++h) s.rstd.set(t * rotated + h, head_rstd(s, t * s.g.qkv_width() + h * d));
      }
      Buffer d_out = normal("d_out", dtype, s.qkv.shape()), dgq = normal("dgq", Dtype::f32, {d}), dgk = normal("dgk", Dtype::f32, {d});
      const Outputs out = run({d_out, dgq, dgk}, [&](Ctx& ctx, Outputs& o) {
        QkNorm n = s.norm(s.rstd);
        n.dgamma_q = o[1].tensor();
        n.dgamma_k = o[2].tensor();
        ops::qk_norm_rope_backward(ctx, o[0].tensor(), s.qkv.tensor(), s.positions.tensor(), s.table.tensor(), s.g, n, o[0].tensor());
      });
      std::vector<double> want = d_out.values();
      std::vector<double> dgamma[2] = {dgq.values(), dgk.values()};
      for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t h = 0; h < rotated; ++h) {
          const int64_t first = t * s.g.qkv_width() + h * d;
          const double rs = head_rstd(s, first);
          double *u = &want[static_cast<size_t>(first)], dot = 0;
          const Buffer& gamma = h < s.g.heads ? s.gamma_q : s.gamma_k;
          turn(s, t, -1.0, u);
          for (int64_t i = 0; i < d; ++i) {
            dgamma[h < s.g.heads ? 0 : 1][static_cast<size_t>(i)] += u[i] * s.qkv.at(first + i) * rs;
            u[i] *= gamma.at(i);
            dot += u[i] * s.qkv.at(first + i);
          }
          for (int64_t i = 0; i < d; ++i) u[i] = rs * u[i] - s.qkv.at(first + i) * rs * rs * rs * dot / static_cast<double>(d);
        }
      }
      expect_close(out[0], want, 2e-6, "d_qkv");
      expect_close(out[1], dgamma[0], 2e-6, "dgamma_q");
      expect_close(out[2], dgamma[1], 2e-6, "dgamma_k");
    }
  }
}

TEST(rope, gradients_by_directional_derivatives) {
  for (const RopeCase& c : rope_cases) {
    RopeProblem s(c, Dtype::f32);
    Machine m;
    Buffer out(Dtype::f32, s.qkv.shape()), w = normal("w", Dtype::f32, s.qkv.shape()), d(Dtype::f32, s.qkv.shape()), dgq(Dtype::f32, {s.g.head_dim}),
                                           dgk = dgq;
    const auto loss = [&] {
      ops::qk_norm_rope(m.ctx, s.qkv.tensor(), s.positions.tensor(), s.table.tensor(), s.g, s.norm(s.rstd), out.tensor());
      return weighted_sum(out, w);
    };
    loss();
    QkNorm n = s.norm(s.rstd);
    n.dgamma_q = dgq.tensor();
    n.dgamma_k = dgk.tensor();
    ops::qk_norm_rope_backward(m.ctx, w.tensor(), s.qkv.tensor(), s.positions.tensor(), s.table.tensor(), s.g, n, d.tensor());
    if (s.normed) {
      expect_gradient({&s.qkv, &s.gamma_q, &s.gamma_k}, {d, dgq, dgk}, loss);
    } else {
      expect_gradient({&s.qkv}, {d}, loss);
    }
  }
}

}  // namespace
