// Cross-entropy with z-loss, and the embedding at the other end of the model.
#include "ops/loss.h"

#include "ops/embedding.h"
#include "support.h"

using namespace cpu_test;

namespace {

struct Result {
  Buffer logits, loss, z;
};

Result cross_entropy(const Buffer& logits, Buffer& labels, int64_t vocab, float z, float scale, bool backward = true) {
  const int64_t n = labels.elements();
  const Outputs out = run({logits, Buffer(Dtype::f32, {n}, 0xFF), Buffer(Dtype::f32, {n}, 0xFF)}, [&](Ctx& ctx, Outputs& o) {
    ops::cross_entropy(ctx, o[0].tensor(), labels.tensor(), vocab, z, backward ? &scale : nullptr, o[1].tensor(), o[2].tensor());
  });
  return {out[0], out[1], out[2]};
}

TEST(cross_entropy, zero_logits_over_ten_classes_and_padding) {
  for (Dtype dtype : both_dtypes) {
    Buffer logits(dtype, {3, 16}), labels = integers({0, 9, 5});
    for (int64_t r = 0; r < 3; ++r) {
      for (int64_t c = 10; c < 16; ++c) logits.set(r * 16 + c, 50.0);  // would swamp the softmax
    }
    const Result r = cross_entropy(logits, labels, 10, 0.0f, 1.0f);
    for (int64_t t = 0; t < 3; ++t) {
      EXPECT_NEAR(r.loss.at(t), std::log(10.0), 1e-6);
      EXPECT_EQ(r.z.at(t), 0.0);
      for (int64_t c = 0; c < 16; ++c) {
        const double want = c >= 10 ? 0.0 : 0.1 - (c == static_cast<int64_t>(labels.at(t)) ? 1.0 : 0.0);
        EXPECT_NEAR(r.logits.at(t * 16 + c), want, dtype == Dtype::f32 ? 1e-6 : 2e-3) << c;
        if (c >= 10) {
          EXPECT_EQ(r.logits.at(t * 16 + c), 0.0);
        }
      }
    }
  }
}

TEST(cross_entropy, loss_and_gradient_against_double) {
  for (Dtype dtype : both_dtypes) {
    for (const auto& [vocab, width] : {std::pair<int64_t, int64_t>{1, 1}, {7, 7}, {100, 128}, {257, 384}}) {
      for (float z : {0.0f, 1e-3f}) {
        for (float scale : {1.0f, 0.37f, 1.0f / 4096.0f}) {
          const int64_t n = 21;
          Buffer logits = normal("logits", dtype, {n, width}, 4.0), labels(Dtype::i32, {n});
          for (int64_t t = 0; t < n; ++t) labels.set(t, t % 5 == 3 ? -1.0 : static_cast<double>(t * 31 % vocab));
          std::vector<double> loss, zs, grad;
          for (int64_t t = 0; t < n; ++t) {
            const bool ignored = labels.at(t) < 0;
            double sum = 0;
            for (int64_t c = 0; c < vocab; ++c) sum += std::exp(logits.at(t * width + c));
            const double lse = std::log(sum);
            loss.push_back(ignored ? 0.0 : lse - logits.at(t * width + static_cast<int64_t>(labels.at(t))));
            zs.push_back(ignored ? 0.0 : static_cast<double>(z) * lse * lse);
            for (int64_t c = 0; c < width; ++c) {
              const double p = c < vocab ? std::exp(logits.at(t * width + c)) / sum : 0.0,
                           onehot = c == static_cast<int64_t>(labels.at(t)) ? 1.0 : 0.0;
              grad.push_back(ignored || c >= vocab ? 0.0 : static_cast<double>(scale) * ((1.0 + 2.0 * static_cast<double>(z) * lse) * p - onehot));
            }
          }
          const Result r = cross_entropy(logits, labels, vocab, z, scale);
          const std::string what = fmt::format("vocabulary {} {} z {} scale {}", vocab, name(dtype), z, scale);
          // A vocabulary of one has loss 0 by cancellation: the error is relative to the logits.
          for (int64_t t = 0; t < n; ++t) ASSERT_NEAR(r.loss.at(t), loss[static_cast<size_t>(t)], 1e-5) << what;
          expect_close(r.z, zs, 1e-6, what + " z");
          if (vocab > 1) expect_close(r.logits, grad, 1e-6, what + " dlogits");
          const Result forward = cross_entropy(logits, labels, vocab, z, scale, false);
          EXPECT_EQ(forward.logits.bytes(), logits.bytes()) << "a forward pass must not touch the logits";
          EXPECT_EQ(forward.loss.bytes(), r.loss.bytes());
        }
      }
    }
  }
}

TEST(cross_entropy, ignored_rows_give_nothing_even_when_not_finite) {
  Buffer logits = normal("logits", Dtype::f32, {2, 8}), labels = integers({-1, 3});
  for (int64_t c = 0; c < 8; ++c) logits.set(c, std::numeric_limits<double>::quiet_NaN());
  const Result r = cross_entropy(logits, labels, 8, 1e-2f, 1.0f);
  EXPECT_EQ(r.loss.at(0), 0.0);
  EXPECT_EQ(r.z.at(0), 0.0);
  for (int64_t c = 0; c < 8; ++c) EXPECT_EQ(r.logits.at(c), 0.0);
  EXPECT_GT(r.loss.at(1), 0.0);
}

TEST(cross_entropy, large_logits) {
  Buffer logits(Dtype::f32, {1, 3}), labels = integers({1});
  const double values[] = {1e4, 1e4 - 2.0, -1e4};
  for (int64_t c = 0; c < 3; ++c) logits.set(c, values[c]);
  const Result r = cross_entropy(logits, labels, 3, 0.0f, 1.0f);
  EXPECT_NEAR(r.loss.at(0), 2.0 + std::log1p(std::exp(-2.0)), 1e-3);
  EXPECT_EQ(r.logits.at(2), 0.0);
}

TEST(cross_entropy, z_loss_by_directional_derivatives) {
  for (float z : {0.0f, 0.05f}) {
    const int64_t n = 6, width = 24, vocab = 20;
    const float scale = 0.25f;
    Buffer logits = normal("logits", Dtype::f32, {n, width}, 2.0), labels = integers({0, 19, -1, 4, 4, 7}), loss(Dtype::f32, {n}),
           zs(Dtype::f32, {n});
    Machine m;
    const auto total = [&] {
      Buffer copy = logits;
      ops::cross_entropy(m.ctx, copy.tensor(), labels.tensor(), vocab, z, nullptr, loss.tensor(), zs.tensor());
      double sum = 0;
      for (int64_t t = 0; t < n; ++t) sum += loss.at(t) + zs.at(t);
      return static_cast<double>(scale) * sum;
    };
    Buffer grad = logits;
    ops::cross_entropy(m.ctx, grad.tensor(), labels.tensor(), vocab, z, &scale, loss.tensor(), zs.tensor());
    expect_gradient({&logits}, {grad}, total);
  }
}

TEST(cross_entropy, wrong_shapes_are_internal_errors) {
  Machine m;
  const float one = 1.0f;
  Buffer logits(Dtype::bf16, {2, 8}), labels = integers({0, 1}), three = integers({0, 1, 2}), loss(Dtype::f32, {2}), z(Dtype::f32, {2});
  EXPECT_THROW(ops::cross_entropy(m.ctx, logits.tensor(), labels.tensor(), 9, 0, &one, loss.tensor(), z.tensor()), Error);
  EXPECT_THROW(ops::cross_entropy(m.ctx, logits.tensor(), labels.tensor(), 0, 0, &one, loss.tensor(), z.tensor()), Error);
  EXPECT_THROW(ops::cross_entropy(m.ctx, logits.tensor(), three.tensor(), 8, 0, &one, loss.tensor(), z.tensor()), Error);
}

TEST(embedding, gathers_rows_and_scatters_gradients) {
  for (Dtype dtype : both_dtypes) {
    for (int64_t h : {3, 64, 200}) {
      Buffer table = normal("table", dtype, {11, h}), tokens(Dtype::i32, {300}), d_out = normal("d", dtype, {300, h}),
             d_table = normal("dt", Dtype::f32, {11, h});
      for (int64_t t = 0; t < 300; ++t) tokens.set(t, static_cast<double>(t * t % 10));  // repeated tokens; 10 never occurs
      const Outputs out = run({Buffer(dtype, {300, h}), d_table}, [&](Ctx& ctx, Outputs& o) {
        ops::embedding(ctx, table.tensor(), tokens.tensor(), o[0].tensor());
        ops::embedding_backward(ctx, d_out.tensor(), tokens.tensor(), o[1].tensor());
      });
      std::vector<double> want = d_table.values();
      for (int64_t t = 0; t < 300; ++t) {
        const auto token = static_cast<int64_t>(tokens.at(t));
        for (int64_t i = 0; i < h; ++i) {
          ASSERT_EQ(out[0].f(t * h + i), table.f(token * h + i));
          want[static_cast<size_t>(token * h + i)] += d_out.at(t * h + i);
        }
      }
      expect_close(out[1], want, 1e-6, "d_table");
      for (int64_t i = 0; i < h; ++i) EXPECT_EQ(out[1].f(10 * h + i), d_table.f(10 * h + i));  // a token that is absent
    }
  }
}

TEST(embedding, gradients_by_directional_derivatives) {
  Machine m;
  Buffer table = normal("table", Dtype::f32, {5, 8}), tokens = integers({4, 0, 4, 4, 2}), out(Dtype::f32, {5, 8}),
         c = normal("c", Dtype::f32, {5, 8}), d(Dtype::f32, {5, 8});
  ops::embedding_backward(m.ctx, c.tensor(), tokens.tensor(), d.tensor());
  expect_gradient({&table}, {d}, [&] {
    ops::embedding(m.ctx, table.tensor(), tokens.tensor(), out.tensor());
    return weighted_sum(out, c);
  });
}

}  // namespace
